"""The picture of a data set: what it is made of decides what is drawn, and what is drawn is right."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from gpbench.config.schema import Dataset, Source
from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.report.datasets import picture

GENERATOR = np.random.default_rng(3)


def about(task: str, classes: tuple[str, ...] = (), **more) -> Dataset:
    source = Source(kind="table", targets=["y"])
    return Dataset("mine", "Mine", task, source, None, 1, 1, "", "", "", classes=list(classes), private=True, **more)


def made(inputs: np.ndarray, targets: np.ndarray) -> Table:
    return Table(inputs, targets, [f"x{i}" for i in range(inputs.shape[1])], [f"y{i}" for i in range(targets.shape[1])])


def drawn(axis) -> float:
    """Sum of the heights of a panel's bars."""
    return sum(bar.get_height() for bar in axis.patches)


def used(figure) -> list:
    return [axis for axis in figure.axes if axis.axison]


@pytest.fixture(scope="module")
def regression() -> Table:
    """The target follows x2, more or less."""
    inputs = GENERATOR.normal(size=(400, 5))
    return made(inputs, np.stack([inputs[:, 2] + GENERATOR.normal(size=400), inputs[:, 0]], 1))


def test_regression(regression):
    figure = picture.draw(regression, about("regression", units={"x2": "km", "y0": "m/s"}))
    first, second, against, *inputs = used(figure)
    assert [first.get_xlabel(), second.get_xlabel()] == ["target y0 [m/s]", "target y1"]
    assert drawn(first) == 400
    assert against.get_xlabel() == "x2 [km]"
    r2 = np.corrcoef(regression.inputs[:, 2], regression.targets[:, 0])[0, 1] ** 2
    assert against.get_title("left") == f"largest r²: {r2:.2f}"
    assert [axis.get_xlabel() for axis in inputs] == ["x0", "x1", "x2 [km]", "x3", "x4"]
    assert [drawn(axis) for axis in inputs] == [400] * 5
    assert "Mine (mine): 400 rows, 5 inputs" in figure.get_suptitle()


def test_many_inputs_show_those_that_correlate_most():
    inputs = GENERATOR.normal(size=(300, 30))
    target = inputs[:, 10:20].sum(1, keepdims=True)
    figure = picture.draw(made(inputs, target), about("regression"))
    shown = [axis.get_xlabel() for axis in used(figure)[2:]]
    assert len(shown) == 16
    assert {f"x{i}" for i in range(10, 20)} <= set(shown)


def test_classes_against_the_input_that_tells_them_apart():
    labels = GENERATOR.integers(0, 3, 300)
    inputs = GENERATOR.normal(size=(300, 4))
    inputs[:, 1] += np.array([0, 5, 0])[labels]  # no straight line finds that
    figure = picture.draw(made(inputs, labels[:, None]), about("multiclass", ("a", "b", "c")))
    bars, against, *_ = used(figure)
    assert [bar.get_width() for bar in bars.patches] == np.bincount(labels).tolist()
    assert [label.get_text() for label in bars.get_yticklabels()] == ["a", "b", "c"]
    assert against.get_xlabel() == "x1"
    indicators = np.eye(3)[labels]
    rest = inputs[:, 1] - indicators @ np.linalg.lstsq(indicators, inputs[:, 1])[0]
    assert against.get_title("left") == f"largest η²: {1 - rest.var() / inputs[:, 1].var():.2f}"


def test_two_inputs_are_a_map_of_the_classes():
    labels = GENERATOR.integers(0, 2, 200)
    figure = picture.draw(made(GENERATOR.normal(size=(200, 2)), labels[:, None]), about("binary", ("no", "yes")))
    points = [len(cloud.get_offsets()) for cloud in used(figure)[1].collections]
    assert points == np.bincount(labels).tolist()


def test_names_are_no_mathematics(tmp_path):
    numbers = np.arange(20.0)[:, None]
    odd = dataclasses.replace(made(numbers, numbers % 2), input_names=["a$x_$"])
    picture.save(odd, about("binary", ("$\\frac{$", "b")), tmp_path / "odd.png")
    assert (tmp_path / "odd.png").is_file()


def test_outliers_do_not_squeeze_the_rest():
    inputs = GENERATOR.normal(size=(1000, 1))
    inputs[7] = 1e6
    figure = picture.draw(made(inputs, inputs[::-1].copy()), about("regression"))
    panel = used(figure)[-1]
    assert panel.get_xlim()[1] < 10
    assert [text.get_text() for text in panel.texts] == ["middle 99 %"]


def test_a_constant_input_is_drawn_and_never_the_best():
    inputs = np.column_stack([np.full(50, 7.0), np.arange(50.0)])
    _, against, *panels = used(picture.draw(made(inputs, inputs[:, 1:] ** 2), about("regression")))
    assert against.get_xlabel() == "x1"
    assert [drawn(axis) for axis in panels] == [50, 50]


def test_images_of_every_class_in_their_order():
    """Class c is drawn in the shade c + 1; a class of three images leaves the rest of its row blank."""
    labels = np.array([1] * 12 + [0] * 3)
    inputs = np.repeat((labels + 1)[:, None], 16, 1).astype(np.uint8)
    figure = picture.draw(made(inputs, labels[:, None]), about("binary", ("zero", "one"), images=True))
    images, bars = used(figure)
    grid = np.ma.filled(images.images[0].get_array().astype(float), np.nan)
    assert grid.shape == (2 * 5, 10 * 5)
    assert np.nansum(grid[:5]) == 3 * 16 * 1
    assert np.nansum(grid[5:]) == 10 * 16 * 2
    assert [bar.get_width() for bar in bars.patches] == [3, 12]


def test_images_whose_targets_are_pixels_are_drawn_whole():
    """Row r is drawn in the shade r above the line and 1000 + r below it."""
    shade = np.arange(500.0)[:, None]
    one = made(np.repeat(shade, 6, 1), 1000 + np.repeat(shade, 3, 1))
    (axis,) = used(picture.draw(one, about("regression", images=True)))
    grid = np.ma.filled(axis.images[0].get_array().astype(float), np.nan)
    assert grid.shape == (5 * 4, 10 * 4)
    assert grid[0, 0] == grid[1, 2] == 0
    assert grid[2, 0] == 1000
    assert (grid[17, 36], grid[18, 36]) == (499, 1499), "the last row is among them"
    assert [line.get_ydata()[0] for line in axis.lines][:2] == [1.5, 5.5]


def test_pixels_that_are_no_square():
    one = made(np.zeros((4, 15), np.uint8), np.array([[0], [1], [0], [1]]))
    with pytest.raises(UserError, match="15 pixels do not make a square image"):
        picture.draw(one, about("binary", ("a", "b"), images=True))


def test_events_in_one_dimension():
    one = made(GENERATOR.uniform(1851, 1962, (191, 1)), np.zeros((191, 0)))
    counts, rug = used(picture.draw(one, about("events", window=[[1850, 1963]], units={"x0": "years"})))
    assert drawn(counts) == 191
    assert rug.get_xlim() == (1850, 1963)
    assert rug.get_xlabel() == "x0 [years]"


def test_events_in_the_plane():
    one = made(GENERATOR.uniform(-5, 2, (60, 2)), np.zeros((60, 0)))
    (panel,) = used(picture.draw(one, about("events", window=[[-5, 5], [-8, 2]])))
    assert np.array_equal(panel.collections[0].get_offsets(), one.inputs)
    assert (panel.get_xlim(), panel.get_ylim()) == ((-5, 5), (-8, 2))


def binned(bins: list[int], window: list[list[float]]) -> Dataset:
    source = Source(kind="table", targets=["y0"], bins=bins)
    return dataclasses.replace(about("counts", window=window), source=source)


def test_counts_of_a_line():
    one = made(np.array([[0.5], [1.5], [2.5]]), np.array([[4.0], [0.0], [2.0]]))
    (panel,) = used(picture.draw(one, binned([3], [[0, 3]])))
    assert [bar.get_height() for bar in panel.patches] == [4, 0, 2]
    assert [(bar.get_x(), bar.get_width()) for bar in panel.patches] == [(0, 1), (1, 1), (2, 1)]
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("x0", "y0")


def test_counts_of_a_plane():
    """Bin (i, j) of a 2 x 3 grid, i along the first coordinate, holds 3 i + j."""
    x, y = np.meshgrid([0.5, 1.5], [5.0, 15.0, 25.0], indexing="ij")
    one = made(np.column_stack([x.ravel(), y.ravel()]), np.arange(6.0)[:, None])
    panel, bar = used(picture.draw(one, binned([2, 3], [[0, 2], [0, 30]])))
    (image,) = panel.images
    assert image.get_array().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (image.origin, image.get_extent()) == ("lower", [0, 2, 0, 30])
    assert (panel.get_xlabel(), panel.get_ylabel(), bar.get_ylabel()) == ("x0", "x1", "y0")


def test_the_file_is_1200_pixels_wide_and_always_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "SAMPLE", 100)  # rows are drawn at random, from a fixed seed
    one = made(GENERATOR.uniform(-5, 2, (200, 2)), np.zeros((200, 0)))
    for name in ("a.png", "b.png"):
        picture.save(one, about("events", window=[[-5, 5], [-8, 2]]), tmp_path / "new" / name)
    assert (tmp_path / "new" / "a.png").read_bytes() == (tmp_path / "new" / "b.png").read_bytes()
    with Image.open(tmp_path / "new" / "a.png") as image:
        assert image.width == 1200
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.png", "b.png"]
