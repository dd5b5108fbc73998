"""Features of images by a variational auto-encoder that is trained while the data set is prepared (kingma2014).

Model      pixels x in [0, 1]^d, x_j ~ Bernoulli(sigmoid(a_j)), a = W4 tanh(W3 z + b3) + b4, z ~ N(0, I) of 30 numbers;
           q(z | x) = N(m, diag(exp(2 s))), [m, s] = W2 tanh(W1 x + b1) + b2.
Objective  E_q log p(x | z) - KL[q || N(0, I)], one draw of z a row, ascended by Adam on mini-batches of 200 rows.
Features   the means m, `DIGITS` decimals; the target is the number of the class.

The features have a checksum, but the last bits of a matrix product depend on the machine. So gradients are rounded to
multiples of `GRID`, far above the rounding of a product and far below themselves; all else is elementwise and exactly
rounded. Bits then differ only where a gradient lies within 1e-15 or so of the middle between two multiples, in about
one training of ten thousand.
"""

import numpy as np

from gpbench.data.simulated.reproducible import stream

HIDDEN, FEATURES = 256, 30
EPOCHS, BATCH, RATE = 20, 200, 1e-3
DECAYS, TINY = (0.9, 0.999), 1e-8
GRID = 2.0**-10  # of gradients of a sum over a mini-batch
DIGITS = 5
Weights = dict[str, np.ndarray]


def features(pixels: np.ndarray) -> np.ndarray:
    """Means of q(z | x) `[n, 30]` of images with pixels `[n, d]` in 0..255, after training on all of them."""
    rng, x = stream(2013), pixels / 255.0
    weights = start(rng, x.shape[1])
    moments = {name: np.zeros((2, *value.shape)) for name, value in weights.items()}
    decayed = np.ones(2)
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        for rows in np.split(order, range(BATCH, len(x), BATCH)):
            decayed *= DECAYS
            gradients = gradient(weights, x[rows], rng.standard_normal((len(rows), FEATURES)))
            for name, value in gradients.items():
                rounded = np.rint(value / GRID) * GRID / len(rows)
                first, second = moments[name]
                first += (1 - DECAYS[0]) * (rounded - first)
                second += (1 - DECAYS[1]) * (rounded**2 - second)
                step = first / (1 - decayed[0]) / (np.sqrt(second / (1 - decayed[1])) + TINY)
                weights[name] = weights[name] + RATE * step
    return (np.tanh(x @ weights["W1"] + weights["b1"]) @ weights["W2"] + weights["b2"])[:, :FEATURES].round(DIGITS)


def start(rng: np.random.Generator, pixels: int) -> Weights:
    """Weights of variance 1 / inputs, and zeros."""
    sizes = {"1": (pixels, HIDDEN), "2": (HIDDEN, 2 * FEATURES), "3": (FEATURES, HIDDEN), "4": (HIDDEN, pixels)}
    weights = {f"W{name}": rng.standard_normal(size) / np.sqrt(size[0]) for name, size in sizes.items()}
    return weights | {f"b{name}": np.zeros(size[1]) for name, size in sizes.items()}


def gradient(weights: Weights, x: np.ndarray, noise: np.ndarray) -> Weights:
    """The gradient of the objective, summed over rows x `[B, d]`, at draws z = m + exp(s) noise."""
    hidden = np.tanh(x @ weights["W1"] + weights["b1"])
    mean, log_sd = np.split(hidden @ weights["W2"] + weights["b2"], 2, axis=1)
    sd = np.exp(log_sd)
    z = mean + sd * noise
    decoded = np.tanh(z @ weights["W3"] + weights["b3"])
    left = x - 1 / (1 + np.exp(-(decoded @ weights["W4"] + weights["b4"])))  # d log p(x | z) / da
    of_decoded = (left @ weights["W4"].T) * (1 - decoded**2)
    of_z = of_decoded @ weights["W3"].T
    of_moments = np.concatenate([of_z - mean, of_z * sd * noise + 1 - sd**2], axis=1)
    of_hidden = (of_moments @ weights["W2"].T) * (1 - hidden**2)
    pairs = {"1": (x, of_hidden), "2": (hidden, of_moments), "3": (z, of_decoded), "4": (decoded, left)}
    products = {f"W{name}": inputs.T @ outputs for name, (inputs, outputs) in pairs.items()}
    return products | {f"b{name}": outputs.sum(0) for name, (_, outputs) in pairs.items()}
