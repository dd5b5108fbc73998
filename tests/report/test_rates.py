"""The figure of the rate of events: moments of the mixture of chains, in one dimension and in two."""

import numpy as np
import pandas as pd
import pytest
from synthetic_study import build

from gpbench.report.figures import draw
from gpbench.report.view import View

DONE = ("done", "")
LINE = pd.DataFrame({"row": range(12, 24), "x0": np.linspace(0, 11, 12)})
PLANE = LINE.assign(x0=np.repeat([0.0, 1, 2, 3], 3), x1=np.tile([0.0, 1, 2], 4))


def with_rates(folder, places, status=lambda *_: DONE):
    """Two methods; the rates of svgp are the bin's number and certain, those of dsvi of two chains 1 and 3 more."""
    build(folder, ["svgp", "dsvi"], ["boston"], 2, status)
    scores = pd.read_parquet(folder / "scores.parquet").assign(task="counts")
    second = scores[(scores["method"] == "dsvi") & (scores["split"] == 0)].assign(replica=1, fit_id="dsvi-boston-0b")
    pd.concat([scores, second]).to_parquet(folder / "scores.parquet")
    rate = np.arange(12.0)
    rates = {"svgp-boston-0": rate, "svgp-boston-1": rate + 50, "dsvi-boston-0": rate + 1, "dsvi-boston-0b": rate + 3}
    points = [
        pd.DataFrame(
            {"fit_id": fit, "row": places["row"], "output": 0, "y": rate % 4, "mean": mean, "sd": np.sqrt(mean)}
        )
        for fit, mean in rates.items()
    ]
    pd.concat(points).to_parquet(folder / "points.parquet")
    inputs = places.melt("row", var_name="column", value_name="x")
    inputs["column"] = inputs["column"].str.removeprefix("x").astype(int)
    pd.concat([inputs.assign(fit_id=fit) for fit in rates]).to_parquet(folder / "inputs.parquet")
    return View(folder)


def test_on_a_line_chains_are_mixed_and_what_they_disagree_on_is_the_band(tmp_path):
    both, svgp, dsvi = draw(with_rates(tmp_path / "s", LINE), "rates").axes
    assert len(both.lines) == 2
    np.testing.assert_allclose(svgp.lines[0].get_ydata(), np.arange(12))
    np.testing.assert_allclose(dsvi.lines[0].get_ydata(), np.arange(12) + 2)
    np.testing.assert_allclose(dsvi.lines[0].get_xdata(), LINE["x0"])
    band = dsvi.collections[1].get_paths()[0].vertices  # after the counts
    # rates 1 and 3 above the bin's number: mean 2, standard deviation 1
    assert band[:, 1].max() == pytest.approx(11 + 2 + 2)
    assert svgp.collections[1].get_paths()[0].vertices[:, 1].max() == pytest.approx(11)


def test_on_a_plane_counts_and_rates_are_maps_on_one_scale(tmp_path):
    counts, svgp, dsvi = draw(with_rates(tmp_path / "s", PLANE), "rates").axes
    np.testing.assert_allclose(counts.collections[0].get_array(), (np.arange(12.0) % 4).reshape(4, 3).T)
    np.testing.assert_allclose(svgp.collections[0].get_array(), np.arange(12.0).reshape(4, 3).T)
    assert svgp.collections[0].get_clim() == dsvi.collections[0].get_clim() == (0, 13)


@pytest.mark.parametrize("places", [LINE, PLANE])
def test_a_method_that_failed_keeps_its_place(tmp_path, places):
    view = with_rates(tmp_path / "s", places, lambda method, *_: ("failed", "no") if method == "svgp" else DONE)
    axes = draw(view, "rates").axes
    assert [axis.get_title("left") for axis in axes[1:]][0].startswith("SVGP")
    assert [text.get_text() for text in axes[1].texts] == ["no finished fit"]


def test_bins_are_those_of_the_split_that_is_drawn(tmp_path):
    """The first fit of the file is of the second split, which holds out other bins."""

    def ends(method, _, split):
        return ("failed", "no") if (method, split) == ("svgp", 0) else DONE

    view = with_rates(tmp_path / "s", LINE, ends)
    inputs = pd.read_parquet(view.folder / "inputs.parquet")
    inputs["row"] += 100 * (inputs["fit_id"] == "svgp-boston-1")
    inputs.to_parquet(view.folder / "inputs.parquet")
    (line,) = draw(view, "rates").axes[2].lines
    np.testing.assert_array_equal(line.get_xdata(), LINE["x0"])


def test_the_split_that_is_drawn_is_one_whose_inputs_are_known(tmp_path):
    """Of the first one a closed form alone is finished, say, which is not asked for its inputs."""
    view = with_rates(tmp_path / "s", LINE)
    inputs = pd.read_parquet(view.folder / "inputs.parquet")
    inputs[inputs["fit_id"] == "svgp-boston-1"].to_parquet(view.folder / "inputs.parquet")
    (line,) = draw(view, "rates").axes[1].lines
    np.testing.assert_allclose(line.get_ydata(), np.arange(12.0) + 50)


def test_without_the_probe_it_says_what_is_missing(small):
    assert draw(View(small), "rates").get_label().startswith("No rates: inputs.parquet is missing")
