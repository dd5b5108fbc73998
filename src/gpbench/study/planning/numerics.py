"""The boundary of identity: which modules can change a number of a fit, and so are hashed into its identity.

Inside are methods, objectives, kernels, samplers, optimiser and loop, streams, scaling, splits, and the distributions
that methods hand over. Outside are files, checkpoints, clocks, messages, places, tables of points and scoring. A module
inside imports no module outside (`tests/study/planning/test_numerics.py`), so the closure of a fit stays inside.
"""

INSIDE = (
    "gpbench.gp",
    "gpbench.sampling",
    "gpbench.solvers",
    "gpbench.methods",
    "gpbench.predictive",
    "gpbench.streams",
    "gpbench.data.scaling",
    "gpbench.data.splits",
    "gpbench.study.fitting.fold",
    "gpbench.study.fitting.inner_split",
    "gpbench.study.fitting.noise",
    "gpbench.study.fitting.schedule",
    "gpbench.study.fitting.convergence",
    "gpbench.study.fitting.loop",
    "gpbench.study.fitting.distributed.updates",
)
"""Modules, and packages with all below them."""

OUTSIDE = ("gpbench.sampling.diagnostics",)
"""What of those packages judges draws and makes none."""

VOCABULARY = ("gpbench", "gpbench.errors", "gpbench.hyper")
"""Names that modules inside may import: they are not hashed, and what of them can change a number is pinned by a test
(`tests/study/planning/test_numerics.py`)."""

PLANNING_ONLY = ("impossible", "needs", "least_rows", "width", "probes", "allows_stale_gradients")
"""Methods of `Hyperparameters` that only the planner asks: they are not hashed."""

LOOPS = {
    "closed_form": ("gpbench.study.fitting.fold",),
    "single": ("gpbench.study.fitting.loop",),
    "synchronous": ("gpbench.study.fitting.loop",),
    "asynchronous": ("gpbench.study.fitting.distributed.updates",),
}
"""How a fit is trained -> the numerics of its training."""

TUNING = "gpbench.study.fitting.inner_split"
"""The numerics that fits have besides which are tuned."""


def is_inside(module: str) -> bool:
    """Whether a module of gpbench lies inside the boundary."""
    return _below(module, INSIDE) and not _below(module, OUTSIDE)


def _below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
