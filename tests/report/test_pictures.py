"""Figures of functions of two inputs, and of images of which a part was predicted."""

import numpy as np
import pandas as pd
import pytest
from figure_texts import texts
from synthetic_study import build

from gpbench.report.figures import draw, write_figure
from gpbench.report.view import View

DONE = ("done", "")
SIDE, TESTED = 4, 40


def shown(axis) -> np.ndarray:
    """The values of a mosaic, NaN where it is blank."""
    return np.ma.filled(axis.images[0].get_array().astype(float), np.nan)


def surface(layer: int, output: int, mean) -> pd.DataFrame:
    """mean(x0, x1) on a grid of 5 x 3."""
    x0, x1 = (values.ravel() for values in np.meshgrid(np.linspace(0, 4, 5), np.linspace(-1, 1, 3)))
    names = {"x0_name": "position", "x1_name": "velocity"}
    columns = {"layer": layer, "output": output, "x0": x0, "x1": x1, "mean": mean(x0, x1), "sd": 0.1}
    return pd.DataFrame(columns | names)


def with_surfaces(folder, status=lambda *_: DONE):
    """Three methods, of which `constant` has no functions; of `dsvi` two splits, a hidden layer of two outputs."""
    build(folder, ["svgp", "dsvi", "constant"], ["boston"], 2, status)
    data = surface(0, 0, lambda x0, x1: 10 * x0 + x1)
    parts = {
        "svgp-boston-0": [data, surface(1, 0, lambda x0, x1: 9 * x0)],
        "dsvi-boston-0": [
            data,
            *(surface(1, o, lambda x0, x1, o=o: x1 + o) for o in (0, 1)),
            surface(2, 0, np.maximum),
        ],
        "dsvi-boston-1": [data, *(surface(1, o, lambda x0, x1: 99 * x1) for o in (0, 1)), surface(2, 0, np.minimum)],
    }
    pd.concat([part.assign(fit_id=fit) for fit, own in parts.items() for part in own]).to_parquet(
        folder / "surfaces.parquet"
    )
    return View(folder)


def test_surfaces_show_data_fits_and_hidden_functions_of_the_first_split(tmp_path):
    view = with_surfaces(tmp_path / "s")
    figure = draw(view, "surfaces")
    maps = {axis.get_title("left"): axis for axis in figure.axes if axis.get_visible() and axis.get_title("left")}
    hidden = [f"DSVI (2 layers)\nlayer 1, function {number}" for number in (1, 2)]
    assert list(maps) == ["training data", "SVGP", "DSVI (2 layers)", *hidden]
    values = {title: np.asarray(axis.collections[0].get_array()) for title, axis in maps.items()}
    x0, x1 = np.meshgrid(np.linspace(0, 4, 5), np.linspace(-1, 1, 3))
    np.testing.assert_array_equal(values["SVGP"], 9 * x0)
    np.testing.assert_array_equal(values["DSVI (2 layers)"], np.maximum(x0, x1))
    np.testing.assert_array_equal(values[hidden[1]], x1 + 1)
    limits = {title: axis.collections[0].get_clim() for title, axis in maps.items()}
    assert limits["training data"] == limits["SVGP"] == limits["DSVI (2 layers)"] == (-1, 41)
    assert limits[hidden[1]] == (0, 2)
    assert (maps["SVGP"].get_xlabel(), maps["training data"].get_ylabel()) == ("position", "velocity")


def test_surfaces_keep_a_place_for_a_method_that_failed(tmp_path):
    view = with_surfaces(tmp_path / "s", lambda method, *_: ("failed", "no") if method == "dsvi" else DONE)
    figure = draw(view, "surfaces")
    titles = [axis.get_title("left") for axis in figure.axes if axis.get_title("left")]
    assert titles == ["training data", "SVGP", "DSVI (2 layers)"]
    assert texts(figure).count("no finished fit") == 1
    assert any(axis.get_label() == "<colorbar>" for axis in figure.axes), "the scale of what is drawn"


def with_pictures(folder, status=lambda *_: DONE):
    """Images of 4 x 4 pixels: row r has 0 + r in its upper half and 100 + r in its lower, which all miss by 3."""
    build(folder, ["svgp", "dsvi"], ["boston"], 2, status)
    rows = np.arange(TESTED)
    half = np.arange(SIDE**2 // 2)
    inputs, points = [], []
    for method, sd in (("svgp", 1.0), ("dsvi", 2.0)):
        for split in range(2):
            fit = f"{method}-boston-{split}"
            grid = pd.MultiIndex.from_product([rows, half], names=["row", "column"]).to_frame(index=False)
            inputs.append(grid.assign(x=grid["row"] + 1000.0 * split, fit_id=fit))
            own = grid.rename(columns={"column": "output"}).assign(y=100.0 + grid["row"], sd=sd, fit_id=fit)
            points.append(own.assign(mean=own["y"] + 3, log_density=-1.0, pit=0.5, crps=0.1))
    pd.concat(inputs).to_parquet(folder / "inputs.parquet")
    pd.concat(points).to_parquet(folder / "points.parquet")
    return View(folder)


def test_pictures_show_whole_images_and_what_was_made_of_them(tmp_path):
    original, seen, *by_method = draw(with_pictures(tmp_path / "s"), "pictures").axes
    chosen = [0, 6, 11, 17, 22, 28, 33, 39]  # evenly through 40 rows
    lines = np.arange(8) * (SIDE + 1)
    for axis, upper, lower in ((original, 0, 100), (seen, 0, np.nan), (by_method[0], 0, 103), (by_method[2], 0, 103)):
        np.testing.assert_array_equal(shown(axis)[lines + 1, 0], np.add(chosen, upper))
        np.testing.assert_array_equal(shown(axis)[lines + 2, SIDE - 1], np.add(chosen, lower))
        assert axis.images[0].get_clim() == (0, 139), "one scale, that of the originals"
        assert axis.lines[0].get_ydata()[0] == 1.5
    for axis, sd in ((by_method[1], 1.0), (by_method[3], 2.0)):
        assert np.isnan(shown(axis)[lines + 1]).all()
        assert (shown(axis)[lines + 2, :SIDE] == sd).all()
        assert axis.images[0].get_clim() == (0, 2)
        assert f"{sd:.3g}" in axis.get_title("left")


def test_pictures_are_of_the_split_whose_predictions_they_show(tmp_path):
    """The first fit of the file is of the second split, whose upper halves are brighter by 1,000."""

    def ends(method, _, split):
        return ("failed", "no") if (method, split) == ("svgp", 0) else DONE

    original = draw(with_pictures(tmp_path / "s", ends), "pictures").axes[0]
    assert np.nanmax(shown(original)) == 139


def test_pictures_do_not_ask_a_closed_form_for_its_inputs(tmp_path):
    """Of the first method by alphabet nothing was probed."""
    folder = tmp_path / "s"
    whole = shown(draw(with_pictures(folder), "pictures").axes[0])
    inputs = pd.read_parquet(folder / "inputs.parquet")
    inputs[~inputs["fit_id"].str.startswith("dsvi")].to_parquet(folder / "inputs.parquet")
    np.testing.assert_array_equal(shown(draw(View(folder), "pictures").axes[0]), whole)


def test_pictures_keep_a_place_for_a_method_that_failed(tmp_path):
    view = with_pictures(tmp_path / "s", lambda method, *_: ("failed", "no") if method == "svgp" else DONE)
    figure = draw(view, "pictures")
    assert len(figure.axes) == 6
    assert texts(figure).count("no\nfinished\nfit") == 1
    assert figure.axes[4].get_title("left") == "DSVI (2 layers)\nmean"


@pytest.mark.parametrize(
    ("name", "make"),
    [("surfaces", with_surfaces), pytest.param("pictures", with_pictures, marks=pytest.mark.slow)],
)
def test_files_are_the_same_byte_for_byte(tmp_path, name, make):
    view = make(tmp_path / "s")
    for one, other in zip(*(write_figure(view, name, tmp_path / folder) for folder in "ab"), strict=True):
        assert one.read_bytes() == other.read_bytes()
