"""A server on this machine that answers each path as a test says, and one small pinned file."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from gpbench.places import Places

ITEM = "mine/rows.data"
CONTENT = b"1 2 3\n4 5 6\n7 8 10\n"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Web:
    """`answers[path]` are given one after the other, the last for ever; `asked` lists (path, Range header)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[tuple[str, str | None]] = []

    def on(self, path: str, *answers: Answer) -> str:
        self.answers[path] = list(answers)
        return self.url + path

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append((request.path, request.headers["Range"]))
        answers = self.answers.get(request.path, [status(404)])
        (answers.pop(0) if len(answers) > 1 else answers[0])(request)


@contextmanager
def serve() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.answer(self)

        def log_message(self, *words: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        web = Web(f"http://127.0.0.1:{http.server_port}")
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield web
        http.shutdown()


def status(code: int, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()

    return answer


def whole(content: bytes) -> Answer:
    """The whole content, whatever range is requested."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        status(200, **{"Content-Length": str(len(content))})(request)
        request.wfile.write(content)

    return answer


def cut(content: bytes, upto: int) -> Answer:
    """The connection ends before the promised length."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        status(200, **{"Content-Length": str(len(content))})(request)
        request.wfile.write(content[:upto])

    return answer


def ranged(content: bytes) -> Answer:
    """As a server that knows Range: the rest of the file, or 416 where there is none."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        start = int((request.headers["Range"] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        if start and start >= len(content):
            return status(416)(request)
        status(206 if start else 200, **{"Content-Length": str(len(content) - start)})(request)
        request.wfile.write(content[start:])

    return answer


def gone(request: BaseHTTPRequestHandler) -> None:
    """Hangs up without a word."""


def garbage(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"what?\r\n\r\n")


def entry(content: bytes, *urls: str, item: str = ITEM, **changes: Any) -> dict[str, Any]:
    """An entry of data.dvc."""
    sha256 = changes.pop("sha256", hashlib.sha256(content).hexdigest())
    md5 = hashlib.md5(content).hexdigest()
    meta = {"sha256": sha256, "urls": list(urls)}
    return {"path": item, "md5": md5, "size": len(content), "hash": "md5", "meta": meta} | changes


def pin_only(project: Path, *entries: dict[str, Any]) -> Places:
    """Let data.dvc hold these entries alone; returns the places of the project."""
    (project / "data.dvc").write_text(yaml.safe_dump({"wdir": "data/raw", "outs": list(entries)}, sort_keys=False))
    return Places(project, project / "store")


def left_behind(project: Path) -> list[str]:
    """Every file below data/ and DVC's cache."""
    folders = (project / "data", project / ".dvc/cache")
    return [str(p.relative_to(project)) for folder in folders for p in folder.rglob("*") if p.is_file()]


def parts(project: Path) -> list[Path]:
    """Downloads that are not complete."""
    return list((project / ".dvc/tmp").rglob("*.part"))
