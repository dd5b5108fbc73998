"""Stand-ins for scans: subjects and sources of the paper, a signal that sources share, and one of noise alone."""

import numpy as np
import pytest

from gpbench.data.simulated import scans

SETS = {"modalities": (scans.MODALITIES, "T2"), "regions": (scans.REGIONS, "occipital")}


def between(x: np.ndarray, y: np.ndarray) -> float:
    """Share of the variance of the columns of x that lies between classes."""
    means = np.stack([x[y == label].mean(0) for label in y])
    return float(((means - x.mean(0)) ** 2).sum() / ((x - x.mean(0)) ** 2).sum())


@pytest.mark.parametrize(("sources", "silent"), SETS.values(), ids=SETS)
def test_sources_share_a_signal_but_one(sources, silent):
    x, y, names = scans.subjects(sources)
    assert x.shape == (62, 40 * len(sources))
    assert np.bincount(y).tolist() == [18, 16, 14, 14]
    parts = dict(zip(sources, np.split(x, len(sources), axis=1), strict=True))
    for name, part in parts.items():
        np.testing.assert_allclose(np.linalg.norm(part, axis=1), 1)
        assert names[40 * list(sources).index(name)] == f"{name}_1"
    # 3 of 61 degrees of freedom lie between classes; the share of noise is about 1 / 20
    shares = {name: between(part, y) for name, part in parts.items()}
    assert shares[silent] == pytest.approx(3 / 61, abs=0.02)
    assert min(share for name, share in shares.items() if name != silent) > shares[silent]
    # Gram matrices of subjects agree between sources of full strength, and not with noise
    off = ~np.eye(62, dtype=bool)
    full = [name for name, strength in sources.items() if strength == 1]
    grams = {name: (part @ part.T)[off] for name, part in parts.items()}
    assert np.corrcoef(grams[full[0]], grams[full[1]])[0, 1] > 0.1
    assert abs(np.corrcoef(grams[full[0]], grams[silent])[0, 1]) < 0.1
