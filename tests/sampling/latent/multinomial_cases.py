"""Small multinomial logit GPs drawn from their prior, and the six approaches of filippone2012 on them."""

import dataclasses

import numpy as np
import torch
from geweke import packed
from torch import Tensor

from gpbench.sampling.latent import multinomial, weights
from gpbench.sampling.latent.model import Generator, Operator, State
from gpbench.sampling.latent.multinomial import Model
from gpbench.sampling.latent.schemes import Sequence

F64 = torch.float64


def normals(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape))


def one_hot(rng: np.random.Generator, f: Tensor) -> Tensor:
    """Classes drawn given f `[R, m, n]`."""
    below = torch.from_numpy(rng.random((len(f), 1, f.shape[2]))) > f.softmax(1).cumsum(1)[:, :-1]
    return torch.nn.functional.one_hot(below.sum(1), f.shape[1]).mT.to(f)


def prior_draws(chains: int, n: int, m: int, q: int, seed: int = 0, simplex: bool = False) -> tuple[Model, State]:
    """Joint draws of theta, f and y; every chain has the same well-conditioned sources."""
    rng = np.random.default_rng(seed)
    x = normals(np.random.default_rng(100), q, n, 2)
    grams = (x @ x.mT / 2 + 0.3 * torch.eye(n, dtype=F64)).expand(chains, -1, -1, -1)
    alpha = rng.exponential(size=(chains, 1, 1))
    weight = rng.gamma(2.0, 0.5, (chains, m, q))
    if simplex:
        # Gamma(a) as Gamma(a + 1) U^(1/a), whose logarithm does not underflow
        log_gamma = np.log(rng.gamma(alpha + 1, size=(chains, m, q))) + np.log(rng.random((chains, m, q))) / alpha
        theta = torch.from_numpy(log_gamma).log_softmax(-1)
    else:
        theta = torch.from_numpy(weight).log()
    model = Model(grams, torch.zeros(chains, m, n, dtype=F64), torch.ones(chains, n, dtype=F64))
    f = (model.factor(theta) @ normals(rng, chains, m, n, 1))[..., 0]
    model = dataclasses.replace(model, y=one_hot(rng, f))
    return model, model.state(theta, f) | {"log_concentration": torch.from_numpy(alpha[:, 0, 0]).log()}


def approach(name: str, model: Model, leapfrogs: int, step: float, theta_step: float) -> Operator:
    """The sampler of a row of table 1, or with Dirichlet weights."""
    homogeneous = name in ("b", "e", "dirichlet")
    latents = multinomial.HMC(model, leapfrogs, step, homogeneous)
    if name in ("c", "d", "f"):
        latents = multinomial.RMHMC(model, leapfrogs, step)
    theta = weights.WeightsWalk(model, theta_step)
    if name in ("a", "b", "c"):
        theta = weights.WeightsHMC(model, leapfrogs, theta_step)
    elif name == "d":
        theta = weights.WeightsRMHMC(model, leapfrogs, theta_step)
    elif name == "dirichlet":
        theta = weights.DirichletWalk(model, theta_step)
    return Sequence(model, [latents, theta])


def generator(operator: Operator, rng: np.random.Generator, chains: int, rows: int) -> Generator:
    size = operator.fixed + rows * operator.per_row
    return packed(normals(rng, chains, size), rows, operator.per_row)
