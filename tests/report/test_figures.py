import pytest
from synthetic_study import METHODS, build

from gpbench.errors import UserError
from gpbench.report import FIGURE_NAMES
from gpbench.report.figures import FIGURES, write_figure
from gpbench.report.figures.canvas import looks
from gpbench.report.view import View


def texts(figure):
    """Every text that a figure shows."""
    return " | ".join(item.get_text() for item in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_names_are_those_the_workflow_lists():
    assert tuple(FIGURES) == FIGURE_NAMES


@pytest.mark.parametrize("name", FIGURE_NAMES)
def test_files_are_the_same_byte_for_byte(small, tmp_path, name):
    first = write_figure(View(small), name, tmp_path / "a")
    second = write_figure(View(small), name, tmp_path / "b")
    assert [path.name for path in first] == [f"{name}.pdf", f"{name}.png"]
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()
        assert a.read_bytes()[:4] in (b"%PDF", b"\x89PNG")
    assert b"CreationDate" not in first[0].read_bytes()
    assert len(list((tmp_path / "a").iterdir())) == 2, "no temporary file is left"


@pytest.mark.parametrize("name", ["convergence", "log_density", "calibration", "pit", "cost"])
def test_every_data_set_and_method_is_named(view, name):
    shown = texts(FIGURES[name].draw(view)).replace("\n", " ")
    assert "boston" in shown
    for label in (view.labels[method] for method in METHODS):
        assert label in shown


def test_absent_fits_are_said_in_the_figure(view):
    shown = texts(FIGURES["log_density"].draw(view))
    assert "skipped: regression only" in shown
    assert "4/5" in shown


def test_critical_difference_prints_whether_the_data_sets_suffice(view):
    shown = texts(FIGURES["critical_difference"].draw(view)).replace("\n", " ")
    assert "5 cannot suffice, whatever the scores" in shown
    assert "Left out as incomplete: boston, yacht" in shown


@pytest.mark.parametrize("name", FIGURE_NAMES)
def test_nothing_finished_draws_a_panel_that_says_so(tmp_path, name):
    folder = build(tmp_path / "s", ["svgp", "constant"], ["boston"], 1, lambda *_: ("failed", "no memory"))
    figure = FIGURES[name].draw(View(folder))
    assert any(word in texts(figure) for word in ("No ", "missing"))


@pytest.mark.parametrize("name", FIGURE_NAMES)
@pytest.mark.parametrize("datasets", [["banana"], ["boston"]])
def test_one_method_one_data_set_one_split(tmp_path, name, datasets):
    folder = build(tmp_path / "s", ["svgp"], datasets, 1)
    assert FIGURES[name].draw(View(folder)).axes


def test_methods_differ_in_more_than_colour(view):
    found = looks(view).values()
    assert len({look.color for look in found}) == len(METHODS)
    assert len({look.marker for look in found}) == len(METHODS)


def test_an_unknown_figure_names_the_nearest(view, tmp_path):
    with pytest.raises(UserError, match="unknown figure 'costs'; did you mean 'cost'"):
        write_figure(view, "costs", tmp_path)
