"""SimpleMKL: support vector machines that share one learned combination of kernels (rakotomamonjy2008).

Kernels    C_s = X_s X_s^T / scale_s of the columns X_s of source s, K = sum_s d_s C_s, d_s >= 0, sum_s d_s = 1.
Objective  J(d) = sum_c max {1^T alpha - 1/2 beta_c^T K beta_c},  beta_c = alpha y^c,  0 <= alpha <= C,  1^T beta_c = 0,
           a problem for each class against the rest (for two classes a single one), minimised over d.
Gradient   dJ/dd_s = -1/2 sum_c beta_c^T C_s beta_c at the solutions beta_c.
Steps      along the reduced gradient, with the largest weight as pivot: as far as J falls whenever a weight reaches 0,
           then a line search; until no weight moves by more than `tolerance`.
Class      of the largest decision value sum_i beta_ci k(x, x_i) + b_c.

C is the one of 10^-5, ..., 10^5 with the best accuracy, of equals the first, in cross-validation on the training rows
that learns weights and machines anew; `folds: null` leaves out one row at a time, as filippone2012 does.

The published method names a class only. The probabilities are softmax(a g(x)) of the decision values g, which leaves
the class as it is; a maximises the likelihood of the held-out decision values, with targets smoothed by Laplace's
rule. So accuracies are comparable to the paper's, Brier scores and log probabilities are this benchmark's own.
Cost: 11 folds + 1 times the weights, some dozens of machines a class (with a single source one), each between n^2 and
n^3.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

from gpbench.errors import UserError
from gpbench.hyper import Annotated, Ge, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods.base import ClosedFormMethod, Model
from gpbench.methods.constant import with_unseen
from gpbench.methods.svm import smallest_class
from gpbench.predictive.distributions import Categorical, Predictive

MOST_STEPS = 500
"""of the weights; tens are usual"""
MOST_ITERATIONS = 10_000
"""of LIBSVM: only classes that no plane separates, at large C, want more (millions), to move b and beta a little"""


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """sources: how many columns each has, in their order (none: all columns are one); scaled: scale_s is the mean of
    the diagonal of X_s X_s^T, else 1; penalties: values of C that are tried, ascending; folds: of cross-validation,
    null for as many as rows; tolerance: of the weights."""

    sources: tuple[PositiveInt, ...] = ()
    scaled: bool = True
    penalties: tuple[PositiveFloat, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4, 1e5)
    folds: Annotated[int, Ge(2)] | None = None
    tolerance: PositiveFloat = 0.01

    def impossible(self, task: str) -> str:
        return "" if self.penalties else "simple_mkl.penalties must name at least one value of C"


class Machines(NamedTuple):
    """Solved problems: beta `[m, n]`, b `[m]`."""

    beta: np.ndarray
    b: np.ndarray


class Problem(NamedTuple):
    """Kernels C_s `[q, n, n]`, signs y^c `[m, n]` and C."""

    kernels: np.ndarray
    signs: np.ndarray
    C: float

    def rows(self, chosen: np.ndarray) -> Problem:
        """The problem of some rows only."""
        return Problem(self.kernels[:, chosen][..., chosen], self.signs[:, chosen], self.C)

    def machines(self, weights: np.ndarray) -> Machines:
        """Those of the kernel with weights `[q]`."""
        kernel = combine(weights, self.kernels)
        beta, b = np.zeros(self.signs.shape), np.zeros(len(self.signs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # see MOST_ITERATIONS
            for c, y in enumerate(self.signs):
                svm = SVC(kernel="precomputed", C=self.C, max_iter=MOST_ITERATIONS).fit(kernel, y)
                beta[c, svm.support_], b[c] = svm.dual_coef_[0], svm.intercept_[0]
        return Machines(beta, b)

    def gradient(self, machines: Machines) -> np.ndarray:
        """dJ/dd `[q]`."""
        return -0.5 * np.einsum("ci,sij,cj->s", machines.beta, self.kernels, machines.beta)


class Method(ClosedFormMethod):
    def fit(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Model:
        """Machines of x `[n, D]`, class numbers y `[n]`, as planes: coefficients `[m, D]`, intercepts `[m]`; weights
        `[q]` of the sources; C; sharpness a; held_out: the accuracy that chose C."""
        smallest_class(y, "simple_mkl")
        # LIBSVM ends within a tolerance, and where depends on the order of the rows
        order = np.lexsort((x.sum(1), y))
        x, (classes, number) = x[order], np.unique(y[order], return_inverse=True)
        sources = self._sources(x)
        scales = [np.square(part).sum() / len(x) or 1.0 if self.hyper.scaled else 1.0 for part in sources]
        kernels = np.stack([part @ part.T / scale for part, scale in zip(sources, scales, strict=True)])
        signs = np.where(number == np.arange(len(classes))[:, None], 1.0, -1.0)
        signs = signs[1:] if len(classes) == 2 else signs
        problems = [Problem(kernels, signs, C) for C in self.hyper.penalties]
        held_out = [self._held_out(problem) for problem in problems]
        accuracies = [float(np.mean(values.argmax(1) == number)) for values in held_out]
        best = int(np.argmax(accuracies))
        weights, machines = learn_weights(problems[best], self.hyper.tolerance)
        planes = [machines.beta @ part * (d / s) for part, d, s in zip(sources, weights, scales, strict=True)]
        learned = {"weights": weights, "coefficients": np.concatenate(planes, 1), "intercepts": machines.b}
        chosen = {"C": problems[best].C, "held_out": accuracies[best], "sharpness": sharpness(held_out[best], number)}
        return learned | chosen | {"classes": classes, "rows": len(x)}

    def predict(self, model: Model, x: np.ndarray) -> Predictive:
        """Class probabilities for x `[T, D]`."""
        values = every_class(x @ model["coefficients"].T + model["intercepts"])
        probs = softmax(model["sharpness"] * values, axis=1)
        return Categorical(with_unseen(probs, model["classes"], self.num_classes, model["rows"])[None])

    def _held_out(self, problem: Problem) -> np.ndarray:
        """Decision values `[n, m]` of each row by weights and machines of the other folds."""
        rows = problem.signs.shape[1]
        fold = np.arange(rows) % (self.hyper.folds or rows)  # rows stand class by class: each is dealt over all folds
        values = np.empty(problem.signs.T.shape)
        for held in (fold == number for number in np.unique(fold)):
            weights, machines = learn_weights(problem.rows(~held), self.hyper.tolerance)
            values[held] = combine(weights, problem.kernels[:, held][..., ~held]) @ machines.beta.T + machines.b
        return every_class(values)

    def _sources(self, x: np.ndarray) -> list[np.ndarray]:
        """Columns of each source."""
        counts = self.hyper.sources or (x.shape[1],)
        if sum(counts) != x.shape[1]:
            raise UserError(
                f"simple_mkl.sources: {list(counts)} are {sum(counts)} columns and the data have {x.shape[1]} inputs; "
                "give the number of columns of each source"
            )
        return np.split(x, np.cumsum(counts)[:-1], axis=1)


def learn_weights(problem: Problem, tolerance: float) -> tuple[np.ndarray, Machines]:
    """Weights `[q]` that minimise J, and the machines there."""
    weights = np.full(len(problem.kernels), 1 / len(problem.kernels))
    for _ in range(MOST_STEPS):
        machines = problem.machines(weights)
        moved = step(problem, weights, problem.gradient(machines), tolerance)
        if np.abs(moved - weights).max() <= tolerance:
            break
        weights = moved
    return weights, machines


def step(problem: Problem, weights: np.ndarray, gradient: np.ndarray, tolerance: float) -> np.ndarray:
    """The weights after one descent along the reduced gradient; gradient: dJ/dd `[q]` at the start."""
    pivot = weights.argmax()
    direction = gradient[pivot] - gradient
    direction[(weights == 0) & (direction < 0)] = 0.0
    direction[pivot] -= direction.sum()

    def at(length: float) -> np.ndarray:
        return np.maximum(weights + length * direction, 0.0)

    def slope(length: float) -> float:
        return problem.gradient(problem.machines(at(length))) @ direction

    while (direction < 0).any() and gradient @ direction < 0:
        reach = np.divide(-weights, direction, out=np.full(len(weights), np.inf), where=direction < 0)
        first = reach.argmin()
        gradient = problem.gradient(problem.machines(at(reach[first])))
        if gradient @ direction > 0:  # J, which is convex, is lowest on the way
            return at(brentq(slope, 0.0, reach[first], xtol=0.1 * tolerance / np.abs(direction).max()))
        weights = at(reach[first])
        weights[first] = 0.0
        if first == pivot:
            break
        direction[pivot] += direction[first]
        direction[first] = 0.0
    return weights


def combine(weights: np.ndarray, kernels: np.ndarray) -> np.ndarray:
    """sum_s d_s C_s."""
    return np.tensordot(weights, kernels, 1)


def every_class(values: np.ndarray) -> np.ndarray:
    """Decision values of all classes `[T, m]`; of two classes the one is minus the other."""
    return np.concatenate([-values, values], 1) if values.shape[1] == 1 else values


def sharpness(values: np.ndarray, number: np.ndarray) -> float:
    """Factor a > 0 of decision values `[n, m]` under which classes `[n]` are likeliest as softmax(a values).

    The target of a row of class c is (n_c + 1) / (n_c + m) for c and 1 / (n_c + m) for the others."""
    size = np.bincount(number)[number][:, None]
    targets = ((number[:, None] == np.arange(values.shape[1])) * size + 1) / (size + values.shape[1])
    unit = np.abs(values).max() or 1.0

    def loss(log_factor: float) -> float:
        return -np.sum(targets * log_softmax(np.exp(log_factor) * values / unit, axis=1))

    return float(np.exp(minimize_scalar(loss, bounds=np.log([1e-3, 1e3]), method="bounded").x) / unit)
