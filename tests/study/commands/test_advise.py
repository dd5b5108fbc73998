"""`gpbench advise`: methods, minutes, a quick study and its recommendation, from a CSV; and the grammar of commands."""

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from gpbench.cli import advise, grammar
from gpbench.config.overrides import split_overrides
from gpbench.errors import UserError
from gpbench.study.planning import cost
from gpbench.study.records import Cell

STUDY = "title: Few methods\nmethods: [constant, linear, svm, gradient_boosting]\ndatasets: [diabetes]\nbudget: smoke\n"


@pytest.fixture
def table(project):
    (project / "conf/study/few.yaml").write_text(STUDY)
    (project / "conf/study/one.yaml").write_text(STUDY.replace("linear, svm, gradient_boosting", "svm"))
    with Path("mine.csv").open("w", newline="") as stream:
        rows = [(i % 7, i % 5, 3 * (i % 7) + 0.1 * (-1) ** i) for i in range(60)]
        csv.writer(stream).writerows([("wind", "sun", "power"), *rows])
    return ("mine.csv", "--target", "power", "--study", "few", "--splits", "3")


def test_advice_goes_from_a_csv_to_the_command_of_the_final_model(table, gpbench, project):
    first = gpbench("advise", *table)
    assert first.code == 0, first.err
    lines = first.out.splitlines()
    assert lines[0] == "mine: regression, 60 rows x 2 inputs"
    assert "  svm                   cannot: binary and multiclass only" in lines
    assert lines[-1] == "next: gpbench advise mine --study few --splits 3 --run"
    assert list(project.glob("results/*")) == []
    answer = gpbench("advise", *table, "--minutes", "0.0001", "--run")  # two at any rate, the cheapest
    assert answer.code == 0, answer.err
    assert "gradient_boosting" in next(line for line in answer.out.splitlines() if line.endswith("left out"))
    assert "recommended: linear, with the least negative log density" in answer.out
    assert "not corrected for their number nor for the choice of the best" in answer.out
    assert "better than constant\n" in answer.out
    assert answer.out.splitlines()[-1] == "next: gpbench fit method=linear dataset=mine split=all"
    fits = sorted(project.glob("store/*/fit.json"))
    again = gpbench("advise", "mine", "--study", "few", "--splits", "3")  # nothing is run, what is known is said
    assert again.out.splitlines()[-1] == answer.out.splitlines()[-1]
    assert sorted(project.glob("store/*/fit.json")) == fits
    assert [line.split()[0] for line in again.out.splitlines()[2:5]] == ["constant", "linear", "gradient_boosting"]
    (short,) = (
        x for x in gpbench("advise", "mine", *table[3:], "--minutes", "0.0001").out.splitlines() if "ing  " in x
    )
    assert short.endswith("left out"), "two have ended, and none has to be run"


def test_of_several_targets_it_is_said_which_one_the_advice_is_of(table, gpbench):
    answer = gpbench("advise", table[0], "--target", "power", "sun", *table[3:])
    assert answer.out.splitlines()[0] == "mine: regression, 60 rows x 1 inputs; of its targets power alone"


def test_a_data_set_of_the_catalogue_is_prepared(table, gpbench, project):
    assert gpbench("advise", "diabetes", *table[3:]).code == 0
    assert (project / "data/prepared/diabetes.npz").is_file()


def test_minutes_are_those_of_all_splits(table, gpbench, monkeypatch):
    monkeypatch.setattr(cost.CostModel, "seconds", lambda *_: 60.0)
    monkeypatch.setattr(Cell, "cores", 2)
    lines = gpbench("advise", *table).out.splitlines()
    assert f"  {'gradient_boosting':<20}    6.00  left out" in lines, "two take 12 minutes of the 10 already"
    assert "A quick study of 2 methods takes about 12.0 minutes of a core." in lines


def test_the_cheapest_methods_that_fit_together_are_afforded():
    minutes = {"dear": 8.0, "cheap": 1.0, "middle": 4.0}
    for most, least, chosen in ((5, 0, ["cheap", "middle"]), (4.9, 0, ["cheap"]), (0.5, 2, ["cheap", "middle"])):
        assert advise._affordable(minutes, most, least) == chosen


def recommendation(monkeypatch, seconds, lower):
    """Of four methods: a is best, b not told from it, c worse, and a fit of d failed."""
    scores = pd.DataFrame({"mean": [2.0, 1.1, 1.0, 0.0], "sd": [0.3, 0.2, 0.1, 0.0], "n": [3, 3, 3, 2]}, list("cbad"))
    scores = scores.assign(complete=scores["n"] == 3, statuses=["", "", "", "1 failed"])
    done = pd.DataFrame({"method": list("aabc"), "seconds_train": seconds})
    others = {"lower": [lower, 0.5], "upper": [0.3, 1.5], "p": [0.3, 0.01], "worse": [0.6, 1.0]}
    told = pd.DataFrame({"best": "a", "method": ["b", "c"], "difference": [0.1, 1.0]} | others)
    monkeypatch.setattr("gpbench.report.significance.comparisons.differences_to_best", lambda *_: told)
    view = SimpleNamespace(done=done, methods=list("abcd"), study={"name": "quick"}, error_metric=lambda _: "rmse")
    view.cells_of = lambda _, metric: scores if metric == "mnll" else scores.assign(mean=scores["mean"] + 6)
    return advise._recommendation(view, "mine")


def test_the_recommendation_says_what_it_rests_on(monkeypatch):
    best, lines = recommendation(monkeypatch, [4.0, 6.0, 2.0, 1.0], -0.1)
    rows = [
        ("a", "1.000 (0.100)", "7", "5.00"),
        ("b", "1.100 (0.200)", "7.1", "2.00"),
        ("c", "2.000 (0.300)", "8", "1.00"),
    ]
    table = [f"  {name:<20}{density:>22}{error:>10}{each:>9}" for name, density, error, each in rows]
    assert lines[:2] == [
        "held-out rows of the quick study, mean (sd) over 3 splits, the best first:",
        f"{'negative log density':>44}      rmse  s a fit",
    ]
    assert lines[2:6] == [*table, "  not compared: d (1 failed); `gpbench verdict quick` says why"]
    assert lines[8:] == [
        "better than c",
        "not told from b: 0.100 nats more, 95 % -0.100 to 0.300, p 0.3; probably worse: 60%",
        "the cheapest of those: b, 2.00 s a fit, not 5.00 s",
    ]
    assert (best, lines[6].split(",")[0]) == ("a", "recommended: a")
    _, lines = recommendation(monkeypatch, [5.0, 5.0, 4.999, 1.0], -math.inf)
    assert lines[-1] == "not told from b: 0.100 nats more on every split; probably worse: 60%", "and none is cheaper"


def test_a_quick_study_of_which_one_method_ended_well_recommends_none(monkeypatch):
    view = SimpleNamespace(
        cells_of=lambda *_: pd.DataFrame({"complete": [True], "mean": [1.0]}), study={"name": "quick"}
    )
    monkeypatch.setattr("gpbench.report.significance.comparisons.differences_to_best", lambda *_: pd.DataFrame())
    with pytest.raises(UserError, match="fewer than two methods ended well; `gpbench verdict quick` says why"):
        advise._recommendation(view, "mine")


def test_targets_have_an_order():
    held = {"source": SimpleNamespace(targets=["a", "b"], categories={"x": ["1"]}, missing=""), "drop": ["c"]}
    dataset = SimpleNamespace(name="mine", task="regression", **held)

    def wishes(**given):
        usual = dict.fromkeys(("target", "categorical", "drop", "missing", "task", "name"))
        return advise._refuse_others(SimpleNamespace(**usual | given), dataset)

    assert wishes(target=["a", "b"], categorical=["x"]) is None
    with pytest.raises(UserError, match="added with --target a b, not b a"):
        wishes(target=["b", "a"])


def test_other_wishes_of_a_table_that_was_added_are_refused(table, gpbench):
    assert gpbench("advise", *table).code == 0
    assert gpbench("advise", *table, "--task", "regression").code == 0
    for words, said in (
        (("mine.csv", "--target", "sun"), "--target power, not sun"),
        (("mine", "--drop", "sun"), "--drop NOTHING, not sun"),
        (("mine.csv", "--categorical", "sun"), "--categorical NOTHING, not sun"),
        (("mine.csv", "--task", "counts"), "--task regression, not counts"),
        (("mine", "--name", "foo"), "--name mine, not foo"),
    ):
        answer = gpbench("advise", *words)
        assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
        assert f"mine was added with {said}; leave out" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("min",), "unknown data set or CSV 'min'"),
        (("mine.csv",), "--target COLUMN"),
        (
            ("yours.csv", "--target", "y"),
            "yours.csv is not a file; give a CSV, or the name of a data set (`gpbench data",
        ),
        (("diabetes", "--splits", "1"), "--splits must be 2 or more"),
        (("diabetes", "--minutes", "0"), "and --minutes positive"),
        (("diabetes", "--study", "one"), "fewer than two methods of the study can learn this"),
        (("diabetes", "--study", "fw"), "unknown study 'fw'"),
    ],
)
def test_what_cannot_be_advised_is_one_line(table, gpbench, words, said):
    answer = gpbench("advise", *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert said in answer.err


def test_set_says_what_overrides_say_in_every_command(project, gpbench):
    few = ("--set", "methods=[constant,linear]", "--set", "datasets=[diabetes]")
    one, other = gpbench("plan", *few, "--json"), gpbench("plan", "--overrides", " ".join(few[1::2]), "--json")
    assert one.out == other.out
    assert {row["method"] for row in json.loads(one.out)} == {"constant", "linear"}
    assert {c["method"] for c in json.loads(gpbench("cost", *few, "--json").out)["cells"]} == {"constant", "linear"}
    assert json.loads(gpbench("status", *few, "--json").out)["states"] == {"pending": 10}
    assert json.loads(gpbench("data", "list", "diabetes", "--json").out)[0]["prepared"] == "no"
    assert "plans/default-" in gpbench("verdict", *few).err  # the run of these overrides, not of `default`
    fitted = gpbench("fit", "method=linear", "dataset=diabetes", "--set", "linear.folds=3", "--set", "budget=smoke")
    same = gpbench("fit", "method=linear", "dataset=diabetes", "method.folds=3", "budget=smoke")
    assert fitted.out == same.out != ""
    blank = SimpleNamespace(overrides="splits=2", set=["svgp.label='A b'", "datasets=[a, b]"])
    grammar.settle(blank)
    assert split_overrides(blank.overrides) == [("splits", "2"), ("svgp.label", "'A b'"), ("datasets", "[a, b]")]


def test_colour_is_for_terminals_without_no_color(monkeypatch):
    assert grammar.paint("done", "done") == "done"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert grammar.paint("done", "done") == "\033[32mdone\033[0m"
    assert grammar.paint("diverged", "diverged") == "\033[31mdiverged\033[0m"
    monkeypatch.setenv("TERM", "dumb")
    assert grammar.paint("done", "done") == "done"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert grammar.paint("done", "done") == "done"


def test_numbers_may_be_negative_and_json_keeps_letters(capsys):
    parser = grammar.Parser()
    parser.add_argument("--number", type=int)
    assert parser.parse_args(["--number", "-3"]).number == -3
    grammar.print_json({"größe": 1})
    assert capsys.readouterr().out == '{\n "größe": 1\n}\n'


def test_a_shell_completes_commands_and_their_words(project, gpbench):
    script = gpbench("completion", "bash").out
    assert "advise" in script
    assert "--set" in script
