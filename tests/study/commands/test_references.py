"""`gpbench references`: lists posteriors, scores draws of a file and chains in the store, refuses in one line."""

import dataclasses
import errno
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpbench import places
from gpbench.data.simulated import posteriors
from gpbench.data.splits import Blocks, FrozenProtocol
from gpbench.methods import sgld_ulisse
from gpbench.study.commands import references
from gpbench.study.fitting.chains_only import content
from gpbench.study.records import Fit, MethodSettings, identify, to_json
from gpbench.study.storage import arrays
from gpbench.study.storage.store import Store
from handmade import CELL, record_of

MODEL = {
    "likelihood": "logit", "kernel": "rbf", "ard": False, "lengthscale_shape": 1.0, "lengthscale_rate": 1.0,
    "variance_prior": "inverse_gamma", "variance_shape": 1.0, "variance_rate": 1.0, "outputscale": None,
}  # fmt: skip


def drawn(name: str, size: int = 2000, shift: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Independent normal draws with the moments of a reference, two chains."""
    rng, found = np.random.default_rng(seed), posteriors.read(name)["quantities"]
    columns = {
        number: value["mean"] + value["sd"] * (shift + rng.standard_normal(size)) for number, value in found.items()
    }
    return pd.DataFrame({"chain": np.arange(size) % 2} | columns)


ITS_PROTOCOL = FrozenProtocol("posterior", "as they are", "as they are", (), (0,), Blocks(100))


def put(store: Store, replica: int, size: int = 2000, protocol: FrozenProtocol = ITS_PROTOCOL, **hyper: object) -> None:
    """A finished chain on the data of logit_100, with draws of its posterior."""
    table = drawn("logit_100", size, seed=replica).drop(columns="chain")
    values = {"psi": table.iloc[:, :2].to_numpy(), "f": table.iloc[:, 2:].to_numpy()}
    names = {"psi": ["log lengthscale", "log variance"], "f": list(table)[2:]}
    address = dataclasses.replace(CELL.address, dataset="posterior_logit_100")
    method = MethodSettings("gpbench.methods.mcmc_gp", MODEL | hyper)
    what = dataclasses.replace(CELL.what, kind="sample", method=method, steps=10, protocol=protocol)
    address = dataclasses.replace(address, overrides=" ".join(f"{key}={value}" for key, value in hyper.items()))
    cell = dataclasses.replace(CELL, address=address, what=what, label="AA")
    fit_id = identify(dataclasses.asdict(what), 0, replica)
    with store.writing(fit_id) as folder:
        (folder / "fit.json").write_text(to_json(record_of(cell, Fit(fit_id, 0, replica, 100, 100))))
        arrays.write(folder, {"chain": content(names, values)})


def test_the_list_names_every_posterior_and_what_it_can_be_trusted_for(gpbench):
    lines = gpbench("references").out.splitlines()
    assert [line.split(":")[0] for line in lines] == posteriors.names()
    (line,) = (line for line in lines if line.startswith("logit_50:"))
    assert "logit, 50 rows, 53 numbers; 4 x 4000 draws, R-hat at most 1.0007, bulk ESS at least 8537" in line


def test_right_draws_agree_and_shifted_ones_differ(gpbench, tmp_path):
    drawn("logit_50").to_csv(tmp_path / "right.csv", index=False)
    answer = gpbench(
        "references", "logit_50", "--draws", str(tmp_path / "right.csv"), "--out", str(tmp_path / "out.csv")
    )
    assert "53 numbers, agrees" in answer.out
    assert [line.split(":")[0].strip() for line in answer.out.splitlines()[1:]] == ["psi[0]", "psi[1]", "psi[2]"]
    written = pd.read_csv(tmp_path / "out.csv")
    assert (len(written), set(written["sampler"])) == (53, {answer.out.split(":")[0]})
    named = {"psi[0]": "log lengthscale 1", "psi[2]": "log variance"}
    drawn("logit_50", shift=0.5)[["psi[0]", "psi[2]", "f[7]"]].rename(columns=named).to_csv(tmp_path / "wrong.csv")
    answer = gpbench("references", "logit_50", "--draws", str(tmp_path / "wrong.csv"))
    assert "3 numbers, differs" in answer.out


def test_a_disk_that_is_full_leaves_the_file_that_was_there(gpbench, tmp_path, monkeypatch):
    def full(table, path, **_):
        Path(path).write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    drawn("logit_50").to_csv(tmp_path / "right.csv", index=False)
    (tmp_path / "out.csv").write_text("whole")
    words = ("--draws", str(tmp_path / "right.csv"), "--out", str(tmp_path / "out.csv"))
    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    answer = gpbench("references", "logit_50", *words)
    assert (answer.code, (tmp_path / "out.csv").read_text()) == (1, "whole")


def test_chains_in_the_store_are_pooled_and_those_of_another_model_left_out(gpbench):
    store = Store(places.find().store)
    for replica in range(2):
        put(store, replica)
    put(store, 2, variance_rate=3.0)
    answer = gpbench("references", "logit_100")
    assert answer.code == 0, answer.err
    assert "is left out: its variance_rate is not that of the reference" in answer.out
    assert "AA (quick, 10 steps): 102 numbers, agrees" in answer.out
    found = posteriors.read("logit_100")
    draws = references.of_store(store, "logit_100", found)["AA (quick, 10 steps)"]
    assert draws["f[99]"].shape == (2, 500)
    kept = [drawn("logit_100", seed=replica)["psi[1]"].to_numpy() for replica in range(2)]
    assert all(np.isin(draws["psi[1]"][r], kept[r].astype(np.float32)).all() for r in range(2))


def test_chains_of_other_data_samplers_or_names_are_told_apart(gpbench):
    store = Store(places.find().store)
    for replica in range(2):
        put(store, replica)
    put(store, 2, protocol=dataclasses.replace(ITS_PROTOCOL, inputs="standardise"))
    put(store, 3, protocol=dataclasses.replace(ITS_PROTOCOL, splits=Blocks(90)))
    put(store, 4, kernel="matern32")
    put(store, 5, size=3)
    put(store, 6, burn_in=0.5)
    lines = gpbench("references", "logit_100").out.splitlines()
    reasons = [line.split("left out: ")[1] for line in lines if "left out" in line]
    assert sorted(reasons) == [
        "it has 3 draws, fewer than 4",
        *(f"its {part} is not that of the reference" for part in ("kernel", "number of rows", "scaling")),
    ]
    scored = [line.split(" numbers")[0] for line in lines if " numbers" in line]
    assert sorted(scored) == [
        "AA (quick, 10 steps): as it is configured: 102",
        "AA (quick, 10 steps): burn_in=0.5: 102",
    ]


def test_a_wrong_spread_differs_and_short_chains_are_not_judged(gpbench, tmp_path):
    found = posteriors.read("logit_50")["quantities"]
    right = drawn("logit_50")
    means = pd.Series({number: value["mean"] for number, value in found.items()})
    for factor in (0.5, 2.0):
        wrong = means + factor * (right[means.index] - means)
        wrong.to_csv(tmp_path / "draws.csv", index=False)
        assert "53 numbers, differs" in gpbench("references", "logit_50", "--draws", str(tmp_path / "draws.csv")).out
    right.head(20).to_csv(tmp_path / "draws.csv", index=False)
    assert "too short to tell" in gpbench("references", "logit_50", "--draws", str(tmp_path / "draws.csv")).out
    right.iloc[::-1].head(1800).assign(chain=[0] * 1000 + [1] * 800).to_csv(tmp_path / "draws.csv", index=False)
    assert "1600 of 1800 draws" in gpbench("references", "logit_50", "--draws", str(tmp_path / "draws.csv")).out


@pytest.mark.parametrize("value", ["-0.328125", "-0.3"])
def test_a_number_that_never_moved_agrees_with_nothing(gpbench, tmp_path, value):
    right = drawn("logit_50")[["psi[0]", "psi[1]"]]
    mean = posteriors.read("logit_50")["quantities"]["psi[0]"]["mean"]
    for stuck in (float(value), mean):
        right.assign(**{"psi[0]": stuck}).to_csv(tmp_path / "draws.csv", index=False)
        answer = gpbench("references", "logit_50", "--draws", str(tmp_path / "draws.csv"))
        assert "2 numbers, differs" in answer.out or "too short to tell" in answer.out, answer.out


def test_draws_are_not_replaced_by_their_scores(gpbench, tmp_path):
    path = tmp_path / "draws.csv"
    path.write_text("psi[0]\n1\n2\n3\n4\n5\n")
    answer = gpbench("references", "logit_50", "--draws", str(path), "--out", str(tmp_path / "." / "draws.csv"))
    assert (answer.code, answer.err.count("\n"), path.read_text()[:8]) == (1, 1, "psi[0]\n1")
    assert "is the table of draws, which it would replace" in answer.err


@pytest.mark.parametrize(
    ("words", "table", "says"),
    [
        (["--out", "out.csv"], None, ["--draws and --out need the name of a reference posterior"]),
        (["logit_5"], None, ["unknown reference posterior 'logit_5'", "'logit_50'"]),
        (["logit_50"], None, ["no finished chain on posterior_logit_50", "study=posteriors"]),
        (["logit_100_given_f"], None, ["no data set does", "--draws FILE.csv"]),
        (["logit_50"], "a,b\n1,2\n", ["has columns a, b", "psi[0]"]),
        (["logit_50"], "psi[0]\nx\n1\n2\n3\n", ["column 'psi[0]' holds what is not a finite number"]),
        (["logit_50"], "psi[0]\n1\n2\n", ["a chain has 2 draws, fewer than 4"]),
        (["logit_50"], "psi[0]\n", ["has no draws below its header"]),
        (["logit_50"], "", ["cannot be read as a CSV"]),
        (["logit_50"], "psi[0]\n1e200\n-1e200\n1\n2\n", ["not a finite number, or one beyond 1e+100"]),
        (["logit_50"], "psi[0]\nTrue\nFalse\nTrue\nTrue\n", ["holds what is not a finite number"]),
        (["logit_50"], "chain,psi[0]\n,1\n0,2\n0,3\n0,4\n0,5\n", ["column 'chain' has empty cells"]),
        (["logit_50"], "psi[0],log lengthscale 1\n1,1\n2,2\n3,3\n4,4\n", ["are the same number; leave one out"]),
    ],
)
def test_mistakes_are_one_line(gpbench, tmp_path, words, table, says):
    if table is not None:
        (tmp_path / "draws.csv").write_text(table)
        words = [*words, "--draws", str(tmp_path / "draws.csv")]
    answer = gpbench("references", *words)
    assert answer.code == 1
    assert answer.err.count("\n") == 1
    assert all(text in answer.err for text in says), answer.err


def test_every_setting_of_the_model_counts():
    found = posteriors.read("probit_50")  # lengthscales ~ Gamma(1, 1/sqrt(2)), variance ~ Gamma(1.2, 0.2)
    right = MODEL | {"likelihood": "probit", "lengthscale_rate": None, "variance_prior": "gamma"}
    right |= {"variance_shape": 1.2, "variance_rate": 0.2}
    assert references._other_model(right, found) == ""
    assert references._other_model({"layers": 2}, found) == "model"
    wrong = {
        "likelihood": "logit",
        "kernel": "matern32",
        "ard": True,
        "lengthscale_rate": 1.0,
        "outputscale": 2.0,
        "variance_prior": "inverse_gamma",
    }
    for key, value in wrong.items():
        assert references._other_model(right | {key: value}, found) == key


def test_chains_of_regression_are_scored_by_their_own_names():
    """Of `gp_mh` and `sgld_ulisse`, which have one prior for all of sigma, lambda and tau."""
    found = posteriors.read("diabetes_100")
    called = [*posteriors.labels(found).values()]
    assert called == ["log sigma", "log lambda", *(f"log tau {number}" for number in range(1, 11))]
    assert called == sgld_ulisse.Method(sgld_ulisse.Hyperparameters(ard=True), "regression").variables("psi", 12)
    model = {"ard": True, "shape": 1.0, "rate": 1.0}
    assert references._other_model(model, found) == ""
    assert references._other_model(model | {"ard": False}, found) == "ard"
    assert references._other_model(model | {"rate": 2.0}, found) == "rate"
    assert references._other_model(MODEL | {"likelihood": "volatility", "ard": True}, found) == "likelihood"
