"""Studies that the tests of this folder share."""

import pytest
from synthetic_study import all_done, build, build_probed

from gpbench.report.significance.comparisons import write_statistics
from gpbench.report.view import View
from projects import REPOSITORY


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """The full study; ('boosting', 'banana', 4) was planned and never collected."""
    return build(tmp_path_factory.mktemp("full") / "synthetic", drop={("boosting", "banana", 4)})


@pytest.fixture(scope="session")
def view(study):
    return View(study)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Two methods, one regression and one binary data set, three splits, all done."""
    folder = tmp_path_factory.mktemp("small") / "small"
    return build(folder, ["svgp", "constant"], ["boston", "banana"], splits=3, status=all_done)


@pytest.fixture(scope="session")
def probed(tmp_path_factory):
    """Eight methods of which most are variants, two data sets, with bounds, functions of layers and staleness."""
    return build_probed(tmp_path_factory.mktemp("probed") / "probed")


@pytest.fixture(scope="session")
def small_view(small):
    return View(small)


@pytest.fixture(scope="session")
def probed_view(probed):
    return View(probed)


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """The published numbers of one paper."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "ashman2020.csv").symlink_to(REPOSITORY / "published" / "ashman2020.csv")
    return folder


@pytest.fixture(scope="session")
def statistics_folder(view, tmp_path_factory):
    """statistics.json and statistics.md of the full study."""
    folder = tmp_path_factory.mktemp("statistics")
    write_statistics(view, folder)
    return folder
