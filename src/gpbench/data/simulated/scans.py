"""Stand-ins for the private scans of filippone2012: 62 subjects of four classes, seen by several sources.

    u_i = 1.5 m_c + e_i,   x_is = a_s W_s u_i + 4 e_is,   each x_is divided by its Euclidean norm

c the class of subject i; m_c the vertices of a regular tetrahedron and u_i `[3]` the signal that all sources share;
W_s `[40, 3]`, e_i, e_is standard normal; a_s how strong the signal is in source s, 0 in one that is noise alone.
Subjects and class sizes are those of the paper, all else is not: no score of it can be compared with a printed one.
"""

from __future__ import annotations

import numpy as np

from gpbench.data.simulated.reproducible import stream

CLASSES = {"MSA": 18, "PSP": 16, "IPD": 14, "control": 14}
"""class -> subjects"""
FEATURES = 40
"""of each source"""
TETRAHEDRON = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3.0)
SEPARATION, NOISE = 1.5, 4.0
MODALITIES = {"GM": 1.0, "WM": 1.0, "T2": 0.0, "FA": 1.0, "MD": 1.0}
REGIONS = {
    "brainstem": 1.0,
    "cerebellum": 1.0,
    "caudate": 0.5,
    "occipital": 0.0,
    "putamen": 0.5,
    "other": 0.5,
}
"""source -> strength of the signal; T2 is what SimpleMKL leaves out in the paper, occipital its control region"""


def subjects(strengths: dict[str, float]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Inputs `[62, 40 S]`, source after source, classes `[62]` and the names of the inputs: GM_1 .. GM_40, WM_1 .."""
    rng = stream(2012, len(strengths))
    y = np.repeat(np.arange(len(CLASSES)), list(CLASSES.values()))
    signal = SEPARATION * TETRAHEDRON[y] + rng.standard_normal((len(y), 3))
    x = np.concatenate([_source(rng, signal, strength) for strength in strengths.values()], axis=1)
    return x, y, [f"{name}_{number}" for name in strengths for number in range(1, FEATURES + 1)]


def _source(rng: np.random.Generator, signal: np.ndarray, strength: float) -> np.ndarray:
    """What one source shows of every subject `[62, 40]`, of norm 1."""
    weights = rng.standard_normal((FEATURES, signal.shape[1]))
    noise = NOISE * rng.standard_normal((len(signal), FEATURES))
    # sums of a few products in a fixed order, where a matrix product's order is the library's
    shown = strength * sum(own[:, None] * weight for own, weight in zip(signal.T, weights.T, strict=True)) + noise
    return shown / np.sqrt(sum(column**2 for column in shown.T))[:, None]
