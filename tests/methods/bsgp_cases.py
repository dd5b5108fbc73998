"""The toy of the BSGP tests.

Golden numbers marked [closed form] were computed in dense NumPy, apart from this code, on the toy
x = (-1, -.5, 0, .5, 1), y = sin 2x, Z = (-1, 0, 1), lengthscale 0.6, outputscale 1.3, noise variance 0.05.
"""

import torch
from gp_cases import hessian

from gpbench.methods.base import State
from gpbench.methods.bsgp import Hyperparameters, Method
from gpbench.methods.training_rows import Batch

TOY_MEAN = torch.tensor([-0.790710, 0.203596, 0.767218], dtype=torch.float64)  # of v [closed form]
TOY_SD = torch.tensor([0.187473, 0.195537, 0.202412], dtype=torch.float64)
TOY_MEAN_U = torch.tensor([-0.901548, 0.0, 0.901548], dtype=torch.float64)  # of u [closed form]
TOY_SD_U = torch.tensor([0.213752, 0.207580, 0.213752], dtype=torch.float64)


def toy(replicas: int = 1) -> tuple[Method, State, Batch]:
    """The toy at v = 0, without jitter."""
    x = torch.linspace(-1, 1, 5, dtype=torch.float64).reshape(1, 5, 1).expand(replicas, -1, -1)
    one = torch.ones(replicas, dtype=torch.float64)
    params = {
        "layer1.inducing_inputs": torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64).expand(replicas, -1, -1),
        "layer1.whitened_values": torch.zeros(replicas, 3, 1, dtype=torch.float64),
        "layer1.log_lengthscale": (0.6 * one).log()[:, None],
        "layer1.log_outputscale": (1.3 * one).log(),
        "log_noise_variance": (0.05 * one).log(),
    }
    method = Method(Hyperparameters(num_inducing=3, jitter=1e-12), "regression")
    return method, State(params), Batch(x, torch.sin(2 * x), torch.ones(replicas, 5, dtype=torch.float64))


def log_likelihood(method: Method, state: State, batch: Batch) -> torch.Tensor:
    return method.log_likelihood(method.layers(state.params), state.params, state.buffers, batch, torch.empty(0))


def posterior_covariance(method: Method, state: State, batch: Batch) -> torch.Tensor:
    """(I + A Lambda^-1 A^T)^-1 of v, from the Hessian of the log likelihood, which is quadratic in v."""

    def value(v):
        moved = State(state.params | {"layer1.whitened_values": v.reshape(1, 3, 1)})
        return log_likelihood(method, moved, batch)[0]

    return torch.linalg.inv(torch.eye(3, dtype=torch.float64) - hessian(value, 3))
