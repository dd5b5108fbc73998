"""Small data and helpers for the tests of the GP methods."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gpbench.methods.base import GradientMethod, Noise, SamplerMethod, State
from gpbench.methods.training_rows import Batch, TrainingSet
from gpbench.streams import Key

# the toy of the golden numbers: five points of sin 2x, three inducing inputs
X = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=torch.float64)[:, None]
Y = torch.sin(2 * X)
Z = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)[:, None]
LENGTHSCALE, OUTPUTSCALE, NOISE_VARIANCE = 0.6, 1.3, 0.05
EVIDENCE, TITSIAS_BOUND = -4.524859, -8.979415


def keys(replicas: int) -> list[Key]:
    return [Key("toy", "toy", split) for split in range(replicas)]


def training_set(x: Tensor, y: Tensor, rows: list[list[int]] | None = None) -> TrainingSet:
    """Replicas with the given rows (every row, once, by default), not scaled."""
    rows = [list(range(len(x)))] if rows is None else rows
    longest = max(map(len, rows))
    padded = torch.tensor([list(r) + [0] * (longest - len(r)) for r in rows])
    shift_x, shift_y = x.new_zeros(len(rows), x.shape[1]), y.new_zeros(len(rows), y.shape[1])
    count = torch.tensor([len(r) for r in rows])
    return TrainingSet(x, y, padded, count, shift_x, shift_x + 1, shift_y, shift_y + 1)


def problem(task: str, n: int = 40, num_inputs: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs `[n, D]` and targets `[n, 1]`: a smooth function, its sign, or which third it lies in."""
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(n, num_inputs)))
    f = torch.sin(x.sum(-1, keepdim=True)) + 0.3 * x[:, :1]
    y = {"regression": f, "binary": (f > 0).double(), "multiclass": (f > -0.4).double() + (f > 0.4).double()}[task]
    return x.to(dtype), y.to(dtype)


def hessian(value, size: int) -> Tensor:
    """Of a quadratic function of `[size]`, from its gradients, which are linear (and differentiable only once)."""
    points = torch.cat([torch.zeros(1, size), torch.eye(size)]).double()
    gradients = torch.stack([torch.autograd.functional.jacobian(value, point) for point in points])
    return gradients[1:] - gradients[0]


def with_gradient(state: State) -> State:
    return State({k: v.clone().requires_grad_() for k, v in state.params.items()}, state.buffers)


def perturbed(state: State, scale: float = 0.1) -> State:
    """Parameters moved off their (symmetric) start, the same for a replica alone or in a batch."""
    moved = {}
    for number, (name, value) in enumerate(state.params.items()):
        generator = torch.Generator().manual_seed(number)
        moved[name] = value + scale * torch.randn(value.shape[1:], generator=generator, dtype=torch.float64).to(value)
    return State(moved, state.buffers)


def replica(state: State, r: int) -> State:
    params, buffers = ({k: v[r : r + 1] for k, v in part.items()} for part in (state.params, state.buffers))
    return State(params, buffers, samples={k: [v[r : r + 1] for v in kept] for k, kept in state.samples.items()})


def each(answer: Callable, state: State, x: Tensor, keys: list[Key]) -> list:
    """What a method's `predict`, `functions` or `marginals` answers for every replica, at x `[R, T, D]`."""
    return [answer(replica(state, r), x[r : r + 1], key) for r, key in enumerate(keys)]


def noise_size(method: GradientMethod | SamplerMethod, state: State, rows: int, step: int = 0, steps: int = 1) -> int:
    return method.noise_shapes(state, rows, step, steps).size(rows)


def split(method: GradientMethod | SamplerMethod, state: State, batch: Batch, normals: Tensor, *steps: int) -> Noise:
    """The noise of a step in normals `[R, size]`; steps: its number, and that of all, 0 and 1 by default."""
    rows = batch.x.shape[1]
    shapes = method.noise_shapes(state, rows, *(steps or (0, 1)))
    return shapes.split(normals[:, : shapes.size(rows)], rows)


def flat_loss(method: GradientMethod, state: State, batch: Batch, normals: Tensor) -> Tensor:
    return method.loss(state, batch, split(method, state, batch, normals))


def loss_and_gradient(
    method: GradientMethod, state: State, batch: Batch, normals: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    state = with_gradient(state)
    value = flat_loss(method, state, batch, normals)
    gradient = torch.autograd.grad(value.sum(), list(state.params.values()))
    return value.detach(), dict(zip(state.params, gradient, strict=True))


def noise_for(method: GradientMethod, state: State, rows: list[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """Noise `[R, size]` of replicas of unequal length, each as it would be alone, zeros at the end."""
    sizes = [noise_size(method, state, n) for n in rows]
    noise = torch.zeros(len(rows), max(sizes), dtype=dtype)
    for r, size in enumerate(sizes):
        noise[r, :size] = torch.randn(size, generator=torch.Generator().manual_seed(r), dtype=torch.float64).to(dtype)
    return noise


def assert_batched_is_looped(method: GradientMethod, task: str) -> None:
    """Loss, gradients and predictions of three replicas (one a row shorter) against one at a time, to 1e-9."""
    x, y = problem(task)
    rows = [list(range(30)), list(range(10, 40)), list(range(5, 34))]
    batched = training_set(x, y, rows)
    state = perturbed(method.start(batched, keys(3)))
    noise = noise_for(method, state, [30, 30, 29])
    losses, gradient = loss_and_gradient(method, state, batched.full(), noise)
    test = torch.stack([x[:6], x[6:12], x[12:18]])
    predictions = each(method.predict, state, test, keys(3))
    for r in range(3):
        alone = training_set(x, y, [rows[r]])
        alone_state = perturbed(method.start(alone, keys(3)[r : r + 1]))
        alone_noise = noise[r : r + 1, : noise_size(method, alone_state, len(rows[r]))]
        alone_loss, alone_gradient = loss_and_gradient(method, alone_state, alone.full(), alone_noise)
        torch.testing.assert_close(losses[r : r + 1], alone_loss, rtol=1e-9, atol=0)
        # some gradients are zero but for rounding (robust-max does not see the outputscale): relative to the largest
        scale = max(float(value.abs().max()) for value in alone_gradient.values())
        for name, value in alone_gradient.items():
            torch.testing.assert_close(gradient[name][r : r + 1], value, rtol=1e-9, atol=1e-9 * scale, msg=name)
        prediction = method.predict(alone_state, test[r : r + 1], keys(3)[r])
        for ours, expected in zip(arrays(predictions[r]), arrays(prediction), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)


def arrays(predictive) -> list[np.ndarray]:
    """The numbers a predictive is made of."""
    return [value for name, value in vars(predictive).items() if name.startswith("component_")]


def assert_nan_stays_in_its_replica(method: GradientMethod, task: str) -> None:
    """A replica whose parameters are NaN leaves loss and gradient of the others bit for bit as they were."""
    x, y = problem(task)
    data = training_set(x, y, [list(range(r, 30 + r)) for r in range(3)])
    state = perturbed(method.start(data, keys(3)))
    noise = noise_for(method, state, [30] * 3)
    losses, gradient = loss_and_gradient(method, state, data.full(), noise)
    broken = {k: v.clone() for k, v in state.params.items()}
    for value in broken.values():
        value[1] = torch.nan
    broken_loss, broken_gradient = loss_and_gradient(method, State(broken, state.buffers), data.full(), noise)
    assert broken_loss[1].isnan()
    for others in (0, 2):
        assert broken_loss[others] == losses[others]
        for name in gradient:
            assert torch.equal(broken_gradient[name][others], gradient[name][others]), name


def train(method: GradientMethod, data: TrainingSet, steps: int) -> tuple[State, list[float]]:
    """Adam on full batches of one replica; the losses on the way."""
    state = with_gradient(method.start(data, keys(1)))
    optimiser, batch, losses = torch.optim.Adam(state.params.values(), lr=0.03), data.full(), []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        normals = torch.randn(1, noise_size(method, state, batch.x.shape[1]), generator=generator, dtype=batch.x.dtype)
        optimiser.zero_grad()
        value = flat_loss(method, state, batch, normals).sum()
        value.backward()
        optimiser.step()
        losses.append(value.item())
    return state, losses
