"""Simulated substitutes for the private scans of filippone2012: 62 subjects of four classes, several sources each.

    u_i = 1.5 m_c + e_i,   x_is = a_s W_s u_i + 4 e_is,   each x_is divided by its Euclidean norm

c is the class of subject i; m_c are the vertices of a regular tetrahedron, u_i `[3]` the signal that all sources share;
W_s `[40, 3]`, e_i, e_is are standard normal; a_s is the strength of the signal in source s, 0 for pure noise. Only the
numbers of subjects per class are those of the paper, so that scores cannot be compared with printed ones.
"""

import numpy as np

from gpbench.data.simulated.reproducible import Draw, stream

CLASSES = {"MSA": 18, "PSP": 16, "IPD": 14, "control": 14}  # class -> number of subjects
FEATURES = 40  # number of features of each source
TETRAHEDRON = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3.0)
SEPARATION, NOISE = 1.5, 4.0
# source -> strength of the signal; in the paper SimpleMKL drops T2, and occipital is the control region
MODALITIES = {"GM": 1.0, "WM": 1.0, "T2": 0.0, "FA": 1.0, "MD": 1.0}
REGIONS = {"brainstem": 1.0, "cerebellum": 1.0, "caudate": 0.5, "occipital": 0.0, "putamen": 0.5, "other": 0.5}


def subjects(strengths: dict[str, float]) -> Draw:
    """Inputs `[62, 40 S]`, source after source, classes `[62]` and the names of the inputs: GM_1 .. GM_40, WM_1 .."""
    rng = stream(2012, len(strengths))
    y = np.repeat(np.arange(len(CLASSES)), list(CLASSES.values()))
    signal = SEPARATION * TETRAHEDRON[y] + rng.standard_normal((len(y), 3))
    x = np.concatenate([_source(rng, signal, strength) for strength in strengths.values()], axis=1)
    return x, y, [f"{name}_{number}" for name in strengths for number in range(1, FEATURES + 1)]


def _source(rng: np.random.Generator, signal: np.ndarray, strength: float) -> np.ndarray:
    """Features of one source for all subjects `[62, 40]`; rows have norm 1."""
    weights = rng.standard_normal((FEATURES, signal.shape[1]))
    noise = NOISE * rng.standard_normal((len(signal), FEATURES))
    # sums of products in a fixed order, since that of a matrix product depends on the library
    x = strength * sum(column[:, None] * weight for column, weight in zip(signal.T, weights.T, strict=True)) + noise
    return x / np.sqrt(sum(column**2 for column in x.T))[:, None]
