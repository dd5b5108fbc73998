"""Small random-feature deep GPs, and every combination of their options."""

from itertools import product

from gp_cases import keys, perturbed, problem, training_set

from cases import CLASSES
from gpbench.methods.base import Batch, State
from gpbench.methods.dgp_rff import Hyperparameters, Method

TREATMENTS = ("prior_fixed", "var_fixed", "var_resampled")
KERNELS = ("rbf", "arc_cosine")
TASKS = ("regression", "binary", "multiclass")
OPTIONS = [
    {"frequencies": treatment, "kernel": kernel, "feed_forward": feed_forward, "local_reparameterisation": local}
    for treatment, kernel, feed_forward, local in product(TREATMENTS, KERNELS, [False, True], [False, True])
]


def named(options: dict) -> str:
    return "-".join(str(value) if isinstance(value, str) else key for key, value in options.items() if value)


def method(task: str = "regression", **hyper) -> Method:
    return Method(Hyperparameters(**({"num_features": 8, "samples_test": 5} | hyper)), task, CLASSES[task])


def start(made: Method, task: str = "regression", replicas: int = 1) -> tuple[Batch, State]:
    """All rows of some equal replicas, and parameters off their start."""
    x, y = problem(task)
    data = training_set(x, y, [list(range(len(x)))] * replicas)
    return data.full(), perturbed(made.start(data, keys(replicas)))
