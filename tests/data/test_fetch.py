"""Fetching: verified bytes or one clear line, and never half a file."""

from __future__ import annotations

import hashlib
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from gpbench import config, places
from gpbench.data.fetch import fetch
from gpbench.errors import UserError

CONTENT = b"1 2 3\n4 5 6\n7 8 10\n"
ENTRY = """\
name: mine
title: Mine
task: regression
source: {kind: table, item: mine/rows.data, separator: whitespace, target: y}
rows: 3
columns: 2
md5: null
licence: none
citation: none
url: none
"""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; `/cut/...` sends less than it promises, `/garbage/...` is no HTTP at all."""

    def do_GET(self) -> None:
        if self.path.startswith("/cut/"):
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:7])
        elif self.path.startswith("/garbage/"):
            self.wfile.write(b"what?\r\n\r\n")
        else:
            super().do_GET()

    def log_message(self, *words: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    """URL of a server on this machine that holds mine/rows.data and wrong/mine/rows.data."""
    folder = tmp_path_factory.mktemp("www")
    for name, content in (("mine", CONTENT), ("wrong/mine", CONTENT.replace(b"10", b"11"))):
        (folder / name).mkdir(parents=True)
        (folder / name / "rows.data").write_bytes(content)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.fixture
def mine(project: Path):
    """Data set `mine`, pinned in data.dvc; returns how to pin other urls or sums."""

    def pin(*urls: str, **changes: str) -> None:
        out = {"path": "mine/rows.data", "md5": hashlib.md5(CONTENT).hexdigest(), "size": len(CONTENT), "hash": "md5"}
        out["meta"] = {"sha256": changes.pop("sha256", hashlib.sha256(CONTENT).hexdigest()), "urls": list(urls)}
        (project / "data.dvc").write_text(yaml.safe_dump({"wdir": "data/raw", "outs": [out | changes]}))

    (project / "conf/dataset/mine.yaml").write_text(ENTRY)
    pin()
    return pin


def fetch_mine(project: Path) -> list[Path]:
    return fetch(config.compose(project / "conf", "dataset", "mine"), places.find())


def left_behind(project: Path) -> list[str]:
    """Every file below data/ and DVC's cache."""
    folders = (project / "data", project / ".dvc/cache")
    return [str(p.relative_to(project)) for folder in folders for p in folder.rglob("*") if p.is_file()]


def test_bundled_sets_need_nothing(project):
    assert fetch(config.compose(project / "conf", "dataset", "boston"), places.find()) == []
    assert left_behind(project) == []


def test_over_http_after_a_source_that_is_gone(project, mine, server):
    mine(f"{server}/nowhere/rows.data", f"{server}/mine/rows.data")
    (path,) = fetch_mine(project)
    assert path == project / "data/raw/mine/rows.data"
    assert path.read_bytes() == CONTENT
    md5 = hashlib.md5(CONTENT).hexdigest()
    cached = f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"
    assert {"data/raw/mine/rows.data", cached} <= set(left_behind(project))
    mine()  # no source any more: the file is there
    assert fetch_mine(project) == [path]
    path.write_bytes(CONTENT + b"\n")
    with pytest.raises(UserError, match=r"rows\.data is not the pinned file .*; delete it to fetch it again"):
        fetch_mine(project)
    path.unlink()  # from the cache
    assert fetch_mine(project)[0].read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("wrong/mine", "md5 is .*, expected .*"),
        ("cut", "md5 is .*, expected .*|IncompleteRead"),
        ("garbage", "BadStatusLine|what"),
        ("nowhere", "HTTP Error 404: File not found"),
    ],
)
def test_a_source_that_is_not_the_file(project, mine, server, place, said):
    mine(f"{server}/{place}/rows.data")
    with pytest.raises(
        UserError, match=rf"mine/rows\.data could not be fetched: {server}/{place}/rows\.data: ({said})"
    ) as e:
        fetch_mine(project)
    assert "\n" not in str(e.value)
    assert left_behind(project) == []


def test_nobody_listens(project, mine):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    mine(f"http://127.0.0.1:{port}/rows.data")
    with pytest.raises(UserError, match="could not be fetched: .*Connection refused"):
        fetch_mine(project)
    assert left_behind(project) == []


def test_both_sums_count(project, mine, server):
    mine(f"{server}/mine/rows.data", sha256="0" * 64)
    with pytest.raises(UserError, match="sha256 is .*, expected 0000"):
        fetch_mine(project)
    assert left_behind(project) == []


def test_no_source_at_all(project, mine, monkeypatch):
    with pytest.raises(UserError, match=r"mine/rows\.data could not be fetched: no source is known"):
        fetch_mine(project)
    monkeypatch.setenv("GPBENCH_MIRROR", str(project / "mirror"))
    with pytest.raises(UserError, match=r"mirror/mine/rows\.data: .*No such file"):
        fetch_mine(project)


def test_a_file_that_is_not_pinned(project, mine):
    (project / "data.dvc").write_text("wdir: data/raw\nouts: []\n")
    with pytest.raises(UserError, match=r"mine/rows\.data is missing and not pinned in data\.dvc"):
        fetch_mine(project)
    path = project / "data/raw/mine/rows.data"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"my own\n")
    assert fetch_mine(project) == [path]


def test_a_data_dvc_that_cannot_be_read(project, mine):
    (project / "data.dvc").write_text("outs: [")
    with pytest.raises(UserError, match=r"data\.dvc cannot be read") as caught:
        fetch_mine(project)
    assert "\n" not in str(caught.value)


@pytest.mark.mirror
def test_the_uci_file_of_boston_gives_the_same_arrays(mirror, project, gpbench, monkeypatch):
    monkeypatch.setenv("GPBENCH_MIRROR", str(mirror))
    answer = gpbench("prepare", "boston", "boston_uci")
    assert answer.code == 0, answer.err
    first, second = (line.split()[-1] for line in answer.out.splitlines())
    assert first == second == config.compose(project / "conf", "dataset", "boston").md5
    assert (project / "data/raw/boston/housing.data").is_file()
