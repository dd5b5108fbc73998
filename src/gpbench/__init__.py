"""gpbench: a reproducible comparative study of (deep) Gaussian-process inference.

What `import gpbench` offers lies in `gpbench.api` and is imported when it is first asked for."""

import importlib
from typing import Any

_API = ("compare", "fit", "list_datasets", "list_methods", "plan", "predict", "results")


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module 'gpbench' has no attribute {name!r}; it offers {', '.join(_API)}")
    return getattr(importlib.import_module("gpbench.api"), name)


def __dir__() -> list[str]:
    return [*globals(), *_API]
