"""Check a built site: `python docs/website/links.py site`. Every link and anchor leads somewhere, every picture has a
text, and no page asks for a file from elsewhere."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Document(HTMLParser):
    """Links, anchors and loaded files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.faults: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attributes}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (key := LOADED.get(tag)) and given.get(key) and given.get("rel") != "canonical":
            self.loaded.append(given[key])
        if tag == "img" and not given.get("alt"):
            self.faults.append(f"picture without a text: {given.get('src', '')[:60]}")


def faults(site: Path) -> list[str]:
    """What is wrong with the pages of a site, one line each."""
    documents = {path: Document(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, document in documents.items():
        wrong = [*document.faults, *(f"loads {url}" for url in document.loaded if urlsplit(url).netloc)]
        for link in (*document.links, *document.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = documents.get(target)
            if not target.is_file() or (parts.fragment and known and unquote(parts.fragment) not in known.anchors):
                wrong.append(f"leads nowhere: {link}")
        found += [f"{path.relative_to(site)}: {text}" for text in dict.fromkeys(wrong)]
    return found


if __name__ == "__main__":
    lines = faults(Path(sys.argv[1]).resolve())
    print("\n".join(lines) or "every link leads somewhere")
    sys.exit(bool(lines))
