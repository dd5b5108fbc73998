"""The mirror of raw files, where there is one."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def mirror() -> Path:
    """Folder of raw files, from the environment."""
    folder = os.environ.get("GPBENCH_MIRROR", "")
    if not Path(folder, "boston").is_dir():
        pytest.skip("needs GPBENCH_MIRROR, a folder that holds boston/housing.data and boston/splits.tar.gz")
    return Path(folder)
