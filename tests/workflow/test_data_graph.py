"""The data part of the real graph: what is fetched and prepared, from a mirror alone, and what is refused."""

from __future__ import annotations

import hashlib
import re
import shutil

import numpy as np
import pytest
import yaml
from graphs import SNAKEMAKE, Project

from gpbench.data.table import Table
from gpbench.study.planning.plan import run_name

FILES = {
    item: "".join(f"{row},{row * factor % 9}\n" for row in range(rows))
    for item, rows, factor in (("a/one.csv", 20, 2), ("a/two.csv", 10, 4), ("b/three.csv", 20, 5))
}
SETS = {"first": ["a/one.csv"], "both": ["a/one.csv", "a/two.csv"], "third": ["b/three.csv"]}


def entry(name: str, files: list[str]) -> dict:
    """Catalogue entry of text tables with one input x0 and the target y; `third` is on request."""
    rows = [list(map(float, line.split(","))) for item in files for line in FILES[item].split()]
    x, y = zip(*rows, strict=True)
    md5 = Table(np.array(x)[:, None], np.array(y)[:, None], ["x0"], ["y"]).md5
    source = {"kind": "table", "files": files, "targets": ["y"]}
    about = {"name": name, "title": name, "task": "regression", "source": source, "rows": len(x), "columns": 1}
    about |= {"md5": md5, "licence": "none", "citation": "none", "url": "http://none"}
    return about | {"on_request": name == "third"}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """A project with three data sets of its own besides boston, whose raw files lie in the folder `mirror`."""
    made = Project(tmp_path_factory.mktemp("graph") / "my data", "", "boston")
    study = {"name": "default", "title": "", "methods": ["constant"], "datasets": ["boston"], "splits": 1}
    (made.root / "conf/study/default.yaml").write_text(yaml.safe_dump(study | {"budget": "smoke"}))
    outs = []
    for item, text in FILES.items():
        (made.root / "mirror" / item).parent.mkdir(parents=True, exist_ok=True)
        (made.root / "mirror" / item).write_text(text)
        outs.append({"path": item, "md5": hashlib.md5(text.encode()).hexdigest(), "size": len(text), "hash": "md5"})
    (made.root / "data.dvc").write_text(yaml.safe_dump({"wdir": "data/raw", "outs": outs}))
    for name, files in SETS.items():
        (made.root / f"conf/dataset/{name}.yaml").write_text(yaml.safe_dump(entry(name, files)))
    return made


def run(project: Project, target: str = "", datasets: str = "boston") -> tuple[int, str]:
    """Make a target, by default the scores of a study of some data sets."""
    overrides = f"datasets=[{datasets}]"
    target = target or f"results/{run_name('default', overrides)}/scores.parquet"
    return project.call(*SNAKEMAKE, target, "--config", "mirror=mirror", f"overrides={overrides}")


def raw(project: Project) -> set[str]:
    folder = project.root / "data/raw"
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def prepared(project: Project) -> set[str]:
    return {p.stem for p in (project.root / "data/prepared").glob("*.npz")}


def test_a_study_fetches_only_what_it_needs(project):
    code, said = run(project, datasets="first")
    assert code == 0, said
    assert raw(project) == {"a/one.csv"}
    assert prepared(project) == {"first"}


def test_data_makes_all_that_are_not_on_request(project):
    before = (project.root / "data/raw/a/one.csv").stat().st_mtime_ns
    code, said = run(project, "data")
    assert code == 0, said
    assert said.splitlines()[-1] == "gpbench: done", "without the report of the study, which was not made"
    assert raw(project) == {"a/one.csv", "a/two.csv"}
    assert (project.root / "data/raw/a/one.csv").stat().st_mtime_ns == before
    assert prepared(project) == {"boston", "both", "first"}
    table = (project.root / "results/data/statistics.csv").read_text()
    assert [line.split(",")[0] for line in table.splitlines()[1:]] == ["boston", "both", "first"]
    assert "Nothing to be done" in run(project, "data")[1]


def test_a_set_on_request_is_fetched_where_a_study_names_it(project):
    code, said = run(project, datasets="third")
    assert code == 0, said
    assert "b/three.csv" in raw(project)


def test_a_changed_entry_is_prepared_again(project):
    path = project.root / "conf/dataset/first.yaml"
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | {"units": {"y": "m"}}))
    code, said = project.gpbench("data", "verify", "first")
    assert code == 1
    assert re.search(r"first\.npz was prepared before \S.*/first\.yaml changed; run", said)
    code, said = run(project, "data")
    assert code == 0, said
    assert project.gpbench("data", "verify")[0] == 0


def forget_fits(project: Project) -> None:
    shutil.rmtree(project.root / "store")


def test_flipped_bytes_reach_no_fit(project):
    """In a raw file before it is prepared, and in a prepared file before a fit reads it."""
    raw_file, array = project.root / "data/raw/b/three.csv", project.root / "data/prepared/third.npz"
    good = raw_file.read_bytes()
    array.unlink()
    raw_file.write_bytes(good.replace(b"8", b"7"))
    forget_fits(project)
    code, said = run(project, datasets="third")
    assert code == 1
    assert "three.csv is not the pinned file (md5 is " in said
    assert not array.exists()
    raw_file.unlink()
    assert project.gpbench("data", "prepare", "third")[0] == 0
    assert raw_file.read_bytes() == good
    content = bytearray(array.read_bytes())
    content[content.index(b"\x93NUMPY") + 128] ^= 1  # the first byte of the inputs
    array.write_bytes(content)
    code, said = run(project, datasets="third")
    assert code == 1
    assert "third.npz cannot be read (Bad CRC-32" in said


def test_without_any_source_the_study_stops_with_one_line(project):
    for folder in ("data/raw/b", ".dvc/cache", "mirror/b"):
        shutil.rmtree(project.root / folder)
    (project.root / "data/prepared/third.npz").unlink(missing_ok=True)
    code, said = run(project, datasets="third")
    assert code == 1
    assert "gpbench: b/three.csv could not be fetched: mirror/b/three.csv: No such file or directory; set" in said
    assert "b/three.csv" not in raw(project)
