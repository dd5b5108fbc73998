"""Catalogue entries made up for tests."""

from gpbench.config.schema import Dataset, Source


def entry(source: dict | None = None, **changes) -> Dataset:
    """A catalogue entry of a text table in file.csv with target y; keys of its source and of itself may differ."""
    plain = {"kind": "table", "files": ["file.csv"], "targets": ["y"]} | (source or {})
    about = {"name": "mine", "title": "", "task": "regression", "md5": None, "rows": 3, "columns": 2}
    about |= {"private": True}
    return Dataset(source=Source(**plain), **(about | changes))
