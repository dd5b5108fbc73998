"""gpbench: a reproducible comparative study of (deep) Gaussian-process inference.

What `import gpbench` offers lies in `gpbench.api` and is imported when it is first asked for."""

import importlib
from typing import Any

_API = ("compare", "fit", "list_datasets", "list_methods", "plan", "predict", "results")
_ESTIMATORS = ("GPBenchClassifier", "GPBenchRegressor")


def __getattr__(name: str) -> Any:
    if name not in (*_API, *_ESTIMATORS):
        offered = ", ".join((*_API, *_ESTIMATORS))
        raise AttributeError(f"module 'gpbench' has no attribute {name!r}; it offers {offered}")
    module = "gpbench.estimators" if name in _ESTIMATORS else "gpbench.api"
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return [*globals(), *_API, *_ESTIMATORS]
