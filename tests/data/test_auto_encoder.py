"""The auto-encoder whose features stand in for published ones: its gradient, that it learns, rounding of gradients."""

import numpy as np
import pytest

from gpbench.data.readers import auto_encoder


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(auto_encoder, "HIDDEN", 12)
    monkeypatch.setattr(auto_encoder, "FEATURES", 3)
    rng = np.random.default_rng(0)
    pixels = 255 * (rng.random((60, 16)) < np.where(np.arange(60)[:, None] % 2, 0.1, 0.9))
    return rng, pixels.astype(np.uint8)


def bound(weights, x, noise):
    """The objective summed over rows x `[B, d]` at draws z = m + exp(s) noise."""
    hidden = np.tanh(x @ weights["W1"] + weights["b1"])
    mean, log_sd = np.split(hidden @ weights["W2"] + weights["b2"], 2, axis=1)
    z = mean + np.exp(log_sd) * noise
    a = np.tanh(z @ weights["W3"] + weights["b3"]) @ weights["W4"] + weights["b4"]
    divergence = 0.5 * (mean**2 + np.exp(2 * log_sd) - 1) - log_sd
    return float((x * a - np.logaddexp(0, a)).sum() - divergence.sum())


def test_the_gradient_is_that_of_the_bound(small):
    rng, pixels = small
    weights, noise = auto_encoder.start(rng, 16), rng.standard_normal((5, 3))
    x, step = pixels[:5] / 255, 1e-6
    for name, gradient in auto_encoder.gradient(weights, x, noise).items():
        direction = rng.standard_normal(gradient.shape)
        ends = [bound(weights | {name: weights[name] + s * step * direction}, x, noise) for s in (1, -1)]
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx((gradient * direction).sum(), rel=1e-5, abs=1e-6)


def test_features_tell_two_kinds_of_images_apart(small, monkeypatch):
    monkeypatch.setattr(auto_encoder, "EPOCHS", 200)
    monkeypatch.setattr(auto_encoder, "BATCH", 20)
    found = auto_encoder.features(small[1])
    assert found.shape == (60, 3)
    gap = abs(found[::2].mean(0) - found[1::2].mean(0)) / found.std(0)
    assert gap.max() > 1.5


def test_rounding_of_products_leaves_the_features_as_they_are(small, monkeypatch):
    """As on another machine, whose matrix products differ in the last bits."""
    expected, exact = auto_encoder.features(small[1]), auto_encoder.gradient
    rng = np.random.default_rng(1)

    def disturbed(*arguments):
        return {name: g * (1 + 1e-15 * rng.standard_normal(g.shape)) for name, g in exact(*arguments).items()}

    monkeypatch.setattr(auto_encoder, "gradient", disturbed)
    assert np.array_equal(auto_encoder.features(small[1]), expected)
