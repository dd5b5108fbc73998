"""What the tests ask of a page: its parts, links and pictures, and whether it needs anything from elsewhere."""

from __future__ import annotations

import base64
import struct
from html.parser import HTMLParser

VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """ids, links (href), pictures (attributes of img), addresses (every src and href), and tags left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.open += [] if tag in VOID else [tag]
        self.ids += [named["id"]] if "id" in named else []
        self.links += [named["href"]] if tag == "a" else []
        self.pictures += [named] if tag == "img" else []
        self.addresses += [value for key, value in attrs if key in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"


def png_size(address: str) -> tuple[int, int]:
    """Pixels of a PNG in a data: URI; an error where it is none."""
    kind, _, content = address.partition(",")
    assert kind == "data:image/png;base64"
    data = base64.b64decode(content, validate=True)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert b"IEND" in data[-12:]
    return struct.unpack(">II", data[16:24])
