"""Count events in the bins of a regular grid over their window."""

import dataclasses

import numpy as np

from gpbench.config.schema import Dataset
from gpbench.data.table import Table
from gpbench.errors import UserError


def events(dataset: Dataset) -> Dataset:
    """The catalogue entry of the events themselves, which have no target."""
    source = dataclasses.replace(dataset.source, bins=[], targets=[])
    return dataclasses.replace(dataset, task="events", source=source)


def count(events: Table, dataset: Dataset) -> Table:
    """Centres of the bins `[N, D]`, the last coordinate running fastest, and numbers of events in them `[N, 1]`.

    A border between two bins belongs to the upper one. Raises UserError if window, bins, target and columns do not fit
    together, and for an event outside the window."""
    source, window = dataset.source, dataset.window
    where, coordinates = f"data set {dataset.name!r}", events.inputs.shape[1]
    if not len(source.bins) == len(window) == coordinates:
        problem = f"{len(source.bins)} bins and {len(window)} pairs in window for {coordinates} coordinates"
        raise UserError(f"{where}: {problem}; give one of each per coordinate in conf/dataset/{dataset.name}.yaml")
    if dataset.task != "counts" or len(source.targets) != 1:
        raise UserError(f"{where}: 'bins' needs the task counts and one target, the name of the counts")
    low, high = np.array(window).T
    outside = np.flatnonzero(((events.inputs < low) | (events.inputs > high)).any(1))
    if len(outside):
        position = ", ".join(f"{value:g}" for value in events.inputs[outside[0]])
        raise UserError(f"{where}: event {outside[0]} (from 0) at {position} lies outside the window {window}")
    counts, edges = np.histogramdd(events.inputs, source.bins, window)
    centres = np.meshgrid(*((edge[:-1] + edge[1:]) / 2 for edge in edges), indexing="ij")
    inputs = np.stack([centre.ravel() for centre in centres], 1)
    return Table(inputs, counts.reshape(-1, 1), events.input_names, list(source.targets))
