"""A two-layer deep GP with one hidden unit, in NumPy with explicit inverses and quadrature."""

import numpy as np
import torch
from scipy.special import logsumexp

from gpbench.methods.base import State


def one(state: State, name: str) -> np.ndarray:
    """A parameter of the first replica."""
    return state.params[name][0].detach().numpy()


def rbf(a: np.ndarray, b: np.ndarray, state: State, name: str) -> np.ndarray:
    """k(a, b) of a layer, `[..., N, M]`."""
    apart = (a[..., :, None, :] - b[..., None, :, :]) / np.exp(one(state, f"{name}.log_lengthscale"))
    return np.exp(one(state, f"{name}.log_outputscale") - 0.5 * (apart**2).sum(-1))


def noise(state: State, name: str) -> float:
    return float(np.exp(one(state, f"{name}.log_noise_variance")))


def kzz(state: State, name: str, jitter: float) -> np.ndarray:
    z = one(state, f"{name}.inducing_inputs")
    return rbf(z, z, state, name) + jitter * np.exp(one(state, f"{name}.log_outputscale")) * np.eye(len(z))


def normalised_hermite(nodes: int = 80) -> tuple[np.ndarray, np.ndarray]:
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points, weights / weights.sum()


def expectations(state: State, name: str, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Psi1 `[N, M]` and Psi2 of every row `[N, M, M]` for one hidden unit, by quadrature."""
    points, weights = normalised_hermite()
    h = mean[:, None] + np.sqrt(variance)[:, None] * points  # [N, K]
    k = rbf(h[..., None], one(state, f"{name}.inducing_inputs"), state, name)  # [N, K, M]
    return np.einsum("k,nkm->nm", weights, k), np.einsum("k,nkm,nkl->nml", weights, k, k)


def best_posterior(state: State, name: str, psi1, psi2, target: np.ndarray, jitter: float):
    """Means `[M, P]` and covariance `[M, M]` of the best q(u)."""
    prior, variance = kzz(state, name, jitter), noise(state, name)
    covariance = prior @ np.linalg.solve(prior + psi2.sum(0) / variance, prior)
    return covariance @ np.linalg.solve(prior, psi1.T @ target) / variance, covariance


def uncollapsed(state: State, name: str, psi1, psi2, target, spread, q, jitter: float) -> float:
    """sum_n E log N(h_n; f_n, s) - KL[q(u) || p(u)]; target `[N, P]`, spread its variances."""
    (mean, covariance), prior, variance = q, kzz(state, name, jitter), noise(state, name)
    inverse, outputscale = np.linalg.inv(prior), np.exp(one(state, f"{name}.log_outputscale"))
    bound = 0.0
    for p, m in enumerate(mean.T):
        function_mean = psi1 @ inverse @ m
        second = inverse @ (covariance + np.outer(m, m) - prior) @ inverse
        function_variance = outputscale + np.einsum("nml,lm->n", psi2, second) - function_mean**2
        square = (target[:, p] - function_mean) ** 2 + spread[:, p] + function_variance
        bound -= 0.5 * (np.log(2 * np.pi * variance) + square / variance).sum()
        log_det = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1]
        bound -= 0.5 * (np.trace(inverse @ covariance) + m @ inverse @ m - len(m) + log_det)
    return bound


def log_evidence(
    state: State, x: np.ndarray, y: np.ndarray, samples: int = 200_000, mean: np.ndarray | float = 0.0
) -> tuple[float, float]:
    """log p(y) of a model with one hidden unit, by drawing h from its prior of a mean; and the standard error."""
    eye = np.eye(len(x))
    prior = np.linalg.cholesky(rbf(x, x, state, "layer1") + noise(state, "layer1") * eye)
    h = mean + np.random.default_rng(0).normal(size=(samples, len(x))) @ prior.T
    covariance = rbf(h[..., None], h[..., None], state, "layer2") + noise(state, "layer2") * eye
    target = torch.as_tensor(y).expand(samples, -1)
    normal = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), torch.as_tensor(covariance))
    log_prob = normal.log_prob(target).numpy()
    average = logsumexp(log_prob) - np.log(samples)
    return average, np.exp(log_prob - average).std() / np.sqrt(samples)
