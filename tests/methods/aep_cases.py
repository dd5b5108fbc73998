"""The toy of the golden numbers as layers of `aep`, and the closed forms beside it in NumPy."""

import gp_cases as cases
import numpy as np
import torch

from gpbench.methods import aep
from gpbench.methods.base import State

X, Y, Z = (part[:, 0].numpy() for part in (cases.X, cases.Y, cases.Z))
FITC_EVIDENCE = -4.699464
TIED_ENERGY = -4.313561
TIED_MAXIMUM = -4.017755


def scalar(value: float) -> torch.Tensor:
    """A number for one replica `[1]`."""
    return torch.tensor([value], dtype=torch.float64)


def kernel(x: np.ndarray, z: np.ndarray, lengthscale=cases.LENGTHSCALE, outputscale=cases.OUTPUTSCALE) -> np.ndarray:
    return outputscale * np.exp(-0.5 * ((x[:, None] - z) / lengthscale) ** 2)


KZZ = kernel(Z, Z)


def projection(x: np.ndarray = X) -> tuple[np.ndarray, np.ndarray]:
    """A = K_ZZ^-1 K_ZX and d = diag(K_XX - Q)."""
    a = np.linalg.solve(KZZ, kernel(Z, x))
    return a, cases.OUTPUTSCALE - (kernel(Z, x) * a).sum(0)


def log_normal(y: np.ndarray, covariance: np.ndarray) -> float:
    """log N(y; 0, covariance)."""
    quadratic = y @ np.linalg.solve(covariance, y)
    return -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1])


def fitc(x: np.ndarray = X, y: np.ndarray = Y, power: float = 1.0) -> float:
    """log N(y; 0, Q + power diag(d) + noise I), the log marginal likelihood of FITC at power 1."""
    a, d = projection(x)
    return log_normal(y, kernel(x, Z) @ a + np.diag(power * d + cases.NOISE_VARIANCE))


def power_ep(x: np.ndarray, y: np.ndarray, power: float) -> float:
    """The energy of power EP with a factor a row (bui2017): of FITC with power d in place of d, less a correction."""
    correction = np.log1p(power * projection(x)[1] / cases.NOISE_VARIANCE).sum()
    return fitc(x, y, power) - (1 - power) / (2 * power) * correction


def exact_sites(x: np.ndarray = X, y: np.ndarray = Y, power: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """B, t of power EP's posterior over u, at power 1 FITC's: precision K^-1 + B B^T, B = A / sqrt(lambda),
    t = A y / lambda, lambda = power d + noise."""
    a, d = projection(x)
    variance = power * d + cases.NOISE_VARIANCE
    return a / np.sqrt(variance), a @ (y / variance)


def titsias_sites() -> tuple[np.ndarray, np.ndarray]:
    a, _ = projection()
    return a / np.sqrt(cases.NOISE_VARIANCE), a @ Y / cases.NOISE_VARIANCE


def layer(name: str, sites=None, lengthscale=cases.LENGTHSCALE, outputscale=cases.OUTPUTSCALE) -> dict:
    """Parameters of a layer of the toy; sites B, t of u, none: zero."""
    root, shift = (np.zeros((3, 1)), np.zeros(3)) if sites is None else sites
    chol = np.linalg.cholesky(kernel(Z, Z, lengthscale, outputscale))
    white = (chol.T @ root)[::-1]
    # white white^T = R R^T with an upper triangular R, by the QR factors of the reversed rows
    factor = np.zeros((3, 3))
    triangle = np.linalg.qr(white.T, mode="r")
    factor[:, : len(triangle)] = triangle.T
    return {
        f"{name}.inducing_inputs": cases.Z[None],
        f"{name}.log_lengthscale": torch.tensor([[lengthscale]], dtype=torch.float64).log(),
        f"{name}.log_outputscale": scalar(outputscale).log(),
        f"{name}.site_factor": torch.tensor(factor[::-1, ::-1].copy())[None, None],
        f"{name}.site_shift": torch.tensor(chol.T @ shift)[None, None],
    }


def state(*layers: dict, rows: int = 5) -> State:
    params = {key: value for part in layers for key, value in part.items()}
    params["log_noise_variance"] = scalar(cases.NOISE_VARIANCE).log()
    for number in range(1, len(layers)):
        params[f"layer{number}.log_noise_variance"] = scalar(0.01).log()
    return State(params, {"num_rows": scalar(rows)})


def method(layers: int = 1, **settings) -> aep.Method:
    small = {"num_inducing": 3, "hidden_width": 1, "jitter": 1e-15}
    return aep.Method(aep.Hyperparameters(layers=layers, **small | settings), "regression")


def energy(state: State, x: np.ndarray = X, y: np.ndarray = Y, **settings) -> float:
    """Energy of the toy's layers with all rows in the batch."""
    layers = sum(name.endswith("site_shift") for name in state.params)
    data = cases.training_set(torch.tensor(x)[:, None], torch.tensor(y)[:, None])
    return -float(method(layers, **settings).loss(state, data.full(), torch.empty(1, 0)))


def moments(state: State, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the last layer's function at x under the posterior."""
    ours = method(sum(name.endswith("site_shift") for name in state.params))
    with torch.no_grad():
        parts = ours.propagate(state, ours.posterior(state), torch.tensor(x)[None, :, None])
    return tuple(part.flatten().numpy() for part in parts)
