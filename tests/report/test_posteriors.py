"""Figures of posteriors: inducing inputs over two inputs, and covariance functions over one."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from synthetic_study import add_replica, build

from gpbench.report.figures import covariance, draw, inducing, write_figure
from gpbench.report.view import View

DONE = ("done", "")
X0, X1 = np.linspace(-2, 2, 9), np.linspace(-1, 1, 5)


def two_chains(folder, methods, datasets, status):
    """A study whose every fit has a second chain `FIT-1`."""
    build(folder, methods, datasets, 1, status)
    add_replica(folder)


def classified(chain: int) -> pd.DataFrame:
    """p = (x0 + 2) / 4 on a grid, which the second chain moves by 0.1; two training rows."""
    x0, x1 = (part.ravel() for part in np.meshgrid(X0, X1, indexing="ij"))
    grid = pd.DataFrame({"layer": 1, "x0": x0, "x1": x1, "p": (x0 + 2) / 4 + 0.1 * chain})
    data = pd.DataFrame({"layer": 0, "x0": [-1.0, 1.0], "x1": [0.0, 0.5], "p": [0.0, 1.0]})
    return pd.concat([data, grid]).assign(x0_name="width", x1_name="height")


def points(z: np.ndarray, lengthscale=1.0, outputscale=1.0, observed=((0.0,), (1.0,))) -> pd.DataFrame:
    """Kept states z `[S, M, D]`, and training rows."""
    parts = []
    for layer, x in ((0, np.array(observed)[:, None]), (1, z)):
        sample, point, column = np.indices(x.shape).reshape(3, -1)
        parts.append(pd.DataFrame({"layer": layer, "sample": sample, "point": point, "column": column, "x": x.ravel()}))
        for name, value in (("lengthscale", lengthscale), ("outputscale", outputscale)):
            parts[-1][name] = np.broadcast_to(np.reshape(value, (-1, 1, 1)), x.shape).ravel() if layer else np.nan
    return pd.concat(parts)


def with_inducing(folder, status=lambda *_: DONE):
    """`bsgp_1` samples three inputs of which one is outside, `svgp` has three for good, `constant` none."""
    two_chains(folder, ["bsgp_1", "svgp", "constant"], ["banana"], status)
    rng = np.random.default_rng(0)
    z = {"bsgp_1": rng.normal([[0.5, 0.2], [-0.5, 0.0], [9.0, 0.0]], 0.05, (40, 3, 2))}
    z["svgp"] = np.repeat(z["bsgp_1"][:1], 40, axis=0)
    cells = [(f"{method}-banana-0{end}", z[method], chain) for method in z for chain, end in enumerate(("", "-1"))]
    pd.concat([classified(chain).assign(fit_id=fit) for fit, _, chain in cells]).to_parquet(
        folder / "probabilities.parquet"
    )
    observed = ((-1.0, 0.0), (1.0, 0.5))
    pd.concat([points(part, observed=observed).assign(fit_id=fit) for fit, part, _ in cells]).to_parquet(
        folder / "inducing.parquet"
    )
    return View(folder)


def meshes(axis) -> list[np.ndarray]:
    return [part.get_array() for part in meshes_of(axis)]


def meshes_of(axis) -> list:
    return [part for part in axis.collections if type(part).__name__ == "QuadMesh"]


def test_inducing_inputs_stand_beside_the_classifier_averaged_over_chains(tmp_path):
    figure = draw(with_inducing(tmp_path / "s"), "inducing")
    left, right, other, fixed, bar = figure.axes
    assert [axis.get_title("left") for axis in (left, other)] == ["BSGP (1 layer)", "SVGP"]
    (p,) = meshes(left)
    data, boundary = (part for part in left.collections if part not in meshes_of(left))
    assert [to_hex(colour) for colour in data.get_facecolors()] == [colour.lower() for colour in inducing.CLASSES]
    np.testing.assert_allclose(boundary.get_paths()[0].vertices[:, 0], -0.2)  # the average is 1/2
    np.testing.assert_allclose(p, np.broadcast_to((X0 + 2) / 4 + 0.05, (5, 9)))
    (density,) = meshes(right)
    assert density.mean() == pytest.approx(2 / 3, abs=1e-6), "two of three are inside, none near an edge"
    columns = np.linspace(-2, 2, 2 * density.shape[1] + 1)[1::2]
    centre = (density.sum(0) * columns).sum() / density.sum()
    assert centre == pytest.approx(0.0, abs=0.02)
    assert right.get_title("right").startswith("33%")
    assert bar.get_xlim() == pytest.approx((0, density.max()))
    assert meshes(fixed) == [], "optimised ones are points"
    assert len(fixed.lines[0].get_xdata()) == 2 * 3


def test_a_method_that_failed_keeps_its_line_of_inducing_inputs(tmp_path):
    view = with_inducing(tmp_path / "s", lambda method, *_: ("failed", "no") if method == "bsgp_1" else DONE)
    figure = draw(view, "inducing")
    assert figure.axes[0].texts[0].get_text() == "no finished fit"
    assert meshes(figure.axes[2])


def with_covariance(folder, status=lambda *_: DONE):
    """Three inducing inputs at -1, 0, 1 in any order; lengthscales 0.5 and 2, outputscales 1 and 4."""
    two_chains(folder, ["bsgp_1", "svgp"], ["boston"], status)
    z = np.array([[-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]])[..., None]
    parts = [points(z, [0.5, 2.0], [1.0, 4.0]).assign(fit_id=f"bsgp_1-boston-0{end}") for end in ("", "-1")]
    wide = points(np.zeros((1, 3, 2)), observed=((0.0, 0.0),)).assign(fit_id="svgp-boston-0")
    pd.concat([*parts, wide]).to_parquet(folder / "inducing.parquet")
    return View(folder)


def band(axis, number: int) -> np.ndarray:
    """Height of the band of an inducing input over x `[T]`."""
    fills = [part for part in axis.collections if type(part).__name__ == "FillBetweenPolyCollection"]
    corners = fills[number].get_paths()[0].vertices
    low, high = (
        corners[:, 1][part] for part in (slice(1, covariance.POINTS + 1), slice(-2, -covariance.POINTS - 2, -1))
    )
    return high - low


def test_each_panel_samples_what_it_says(tmp_path):
    fixed, theta, z, both, distance, scales = draw(with_covariance(tmp_path / "s"), "covariance").axes[:6]
    assert [axis.get_title("left") for axis in (fixed, theta, z, both)] == list(covariance.PANELS)
    x, k = fixed.lines[0].get_data()
    np.testing.assert_allclose([x[0], x[-1]], [-0.15, 1.15])
    # lengthscale and outputscale at the means of their logarithms: 1 and 2
    np.testing.assert_allclose(k, 2 * np.exp(-0.5 * (x + 1) ** 2))
    for number in range(3):
        assert np.ptp(band(fixed, number)) == 0
        np.testing.assert_allclose(band(z, number), 0, atol=1e-12, err_msg="the same points under other numbers")
        assert band(theta, number).max() > 0.5
    away, over = distance.lines[0].get_data()
    low, high = (s * np.exp(-0.5 * (away / length) ** 2) for s, length in ((1, 0.5), (4, 2)))
    np.testing.assert_allclose(over, (low + high) / 2)
    for line in scales.lines:  # a chain each
        np.testing.assert_array_equal(line.get_xydata(), [(0.5, 1), (2, 4)])
    assert (scales.get_xlabel(), scales.get_ylabel()) == ("lengthscale", "outputscale")


def test_a_covariance_over_more_than_one_input_is_not_drawn(tmp_path):
    axes = draw(with_covariance(tmp_path / "s"), "covariance").axes[6:]
    assert [text.get_text() for axis in axes for text in axis.texts if text.get_text()] == ["SVGP: more than one input"]


@pytest.mark.slow
def test_files_are_the_same_byte_for_byte(tmp_path):
    view = with_inducing(tmp_path / "s")
    for one, other in zip(*(write_figure(view, "inducing", tmp_path / folder) for folder in "ab"), strict=True):
        assert one.read_bytes() == other.read_bytes()


def with_classes(folder, status=lambda *_: DONE):
    """`bsgp_1` samples three functions at two inputs, of which 1 and 2 agree at the second; `svgp` keeps no values."""
    two_chains(folder, ["bsgp_1", "svgp"], ["digits"], status)
    x0, x1 = (part.ravel() for part in np.meshgrid(X0, X1, indexing="ij"))
    p = np.stack([(x0 + 2) / 4, (2 - x0) / 8, (2 - x0) / 8])
    parts, inputs, values, rng = [], [], [], np.random.default_rng(0)
    for chain, end in enumerate(("", "-1")):
        for method in ("bsgp_1", "svgp"):
            fit = {"fit_id": f"{method}-digits-0{end}", "x0_name": "width", "x1_name": "height"}
            for number in range(3):
                grid = pd.DataFrame({"layer": 1, "class": number, "x0": x0, "x1": x1, "p": p[number]})
                data = pd.DataFrame(
                    {"layer": 0, "class": number, "x0": [0.0, 1.0], "x1": 0.0, "p": [float(number == 0), 0.0]}
                )
                parts.append(pd.concat([data, grid]).assign(**fit))
            z = np.array([[[0.0, 0.5], [1.0, -0.5]]])
            inputs.append(points(z, observed=((0.0, 0.0),)).assign(fit_id=fit["fit_id"]))
        v = rng.normal(size=(30, 2, 3))
        v[:, 1, 2] = -v[:, 1, 1] + 0.2 * chain
        sample, point, output = np.indices(v.shape).reshape(3, -1)
        kept = {"sample": sample, "point": point, "output": output, "v": v.ravel()}
        values.append(pd.DataFrame(kept).assign(fit_id=f"bsgp_1-digits-0{end}"))
    for name, own in (("probabilities", parts), ("inducing", inputs), ("whitened", values)):
        pd.concat(own).to_parquet(folder / f"{name}.parquet")
    return View(folder)


def test_classes_have_contours_and_a_sampler_its_two_most_correlated_functions(tmp_path):
    figure = draw(with_classes(tmp_path / "s"), "classes")
    sampled, gaussian, values = (axis for axis in figure.axes if axis.get_title("left"))
    assert [axis.get_title("left") for axis in (sampled, values)] == ["BSGP (1 layer)", "BSGP (1 layer), v"]
    for axis in (sampled, gaussian):
        contours = [part for part in axis.collections if type(part).__name__ == "QuadContourSet"]
        # p of class 0 is 0.3 at x0 = -0.8 and 0.95 at 1.8
        lines = [path.vertices[:, 0] for path in contours[0].get_paths()]
        np.testing.assert_allclose([line.mean() for line in lines], [-0.8, 1.8, 1.96])
        np.testing.assert_array_equal(axis.lines[0].get_xydata(), [[0.0, 0.5], [1.0, -0.5]])
    assert [line.get_xdata().size for line in values.lines] == [30, 30], "one colour a chain"
    first, second = (line.get_xydata() for line in values.lines)
    np.testing.assert_allclose(first.sum(1), 0, atol=1e-12)
    np.testing.assert_allclose(second.sum(1), 0.2)
    (said,) = (text.get_text() for text in values.texts)
    assert said.startswith("input 2, correlation -0.9"), "they would be opposite but for what tells chains apart"


def test_a_method_without_a_finished_fit_keeps_its_panel_of_classes(tmp_path):
    view = with_classes(tmp_path / "s", lambda method, *_: ("failed", "no") if method == "svgp" else DONE)
    shown = [text.get_text() for axis in draw(view, "classes").axes for text in axis.texts]
    assert shown.count("no finished fit") == 1


def test_covariance_parameters_are_dots_of_a_sampler_and_a_cross_of_what_was_optimised(tmp_path):
    two_chains(tmp_path / "s", ["bsgp_1", "svgp", "constant"], ["yacht"], lambda *_: DONE)
    sampled = points(np.zeros((3, 2, 2)), lengthscale=[1.0, 2.0, 3.0], outputscale=[4.0, 5.0, 6.0])
    fixed = points(np.zeros((1, 2, 2)), lengthscale=[7.0], outputscale=[8.0])
    parts = [sampled.assign(fit_id=f"bsgp_1-yacht-0{end}") for end in ("", "-1")]
    pd.concat([*parts, fixed.assign(fit_id="svgp-yacht-0")]).to_parquet(tmp_path / "s" / "inducing.parquet")
    figure = draw(View(tmp_path / "s"), "parameters")
    dots, cross = figure.axes[0].lines
    np.testing.assert_array_equal(dots.get_xydata(), [[1, 4], [2, 5], [3, 6]] * 2)
    np.testing.assert_array_equal(cross.get_xydata(), [[7, 8]])
    assert (dots.get_marker(), cross.get_marker()) == (".", "X")
    assert dots.get_color() != cross.get_color()


def test_inducing_images_are_the_three_that_moved_most(tmp_path):
    build(tmp_path / "s", ["svgp", "constant"], ["digits"], 1, lambda *_: DONE)
    before = np.arange(5.0)[:, None] * np.ones((5, 4))
    moved = before + np.array([[0.0], [3.0], [-5.0], [0.1], [4.0]])
    point, column = np.indices(before.shape).reshape(2, -1)
    rows = {"point": point, "column": column, "before": before.ravel(), "x": moved.ravel()}
    pd.DataFrame(rows).assign(fit_id="svgp-digits-0").to_parquet(tmp_path / "s" / "starts.parquet")
    images = [axis.images[0] for axis in draw(View(tmp_path / "s"), "inducing_images").axes]
    shown = [image.get_array()[0, [0, 3, 6]] for image in images]
    np.testing.assert_array_equal(shown, [[2, 4, 1], [-3, 8, 4], [-5, 4, 3]])
    assert images[0].get_clim() == images[1].get_clim() == (0, 4), "one scale, that of the start"
    assert images[2].get_clim() == (-5, 5)


@pytest.mark.parametrize("name", ["parameters", "inducing_images"])
def test_without_their_probe_these_figures_say_what_is_missing(tmp_path, name):
    build(tmp_path / "s", ["svgp"], ["digits"], 1, lambda *_: DONE)
    figure = draw(View(tmp_path / "s"), name)
    shown = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert any("probes" in text for text in shown)
