"""MkDocs hooks of the site (`make site`): pages made from code, configuration and committed records.

`docs/` is the source of the site. What is made here is never written there: MkDocs is handed each page as text."""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatch
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import nbformat  # noqa: E402

import datasets  # noqa: E402
import methods  # noqa: E402
import notebook  # noqa: E402
import reference_pages  # noqa: E402
import runs  # noqa: E402
from gpbench import config as conf  # noqa: E402
from gpbench import places  # noqa: E402
from gpbench.report.page import page as report_page  # noqa: E402
from records import cells, committed  # noqa: E402

EXECUTED = ROOT / "build" / "tour.ipynb"
FROM_ROOT = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
FROM_ROOT |= {"security.md": "SECURITY.md"}
FILES = {
    "CITATION.cff": ROOT / "CITATION.cff",
    "assets/site.css": HERE / "site.css",
    "assets/explore.js": HERE / "explore.js",
    "assets/iframe-worker.js": HERE / "iframe-worker.js",
    "assets/sort.js": Path(report_page.__file__).with_name("sort.js"),
}
SECTIONS = {"Methods": "methods/*.md", "Data sets": "datasets/*.md", "Results": "results/*/index.md"}
"""Section of the navigation -> the pages that are made for it."""
BARE_TABLE = re.compile(r"<table>(.*?)</table>", re.DOTALL)

made: dict[str, str] = {}
"""Path below docs/ -> Markdown."""


def on_config(config: MkDocsConfig) -> None:
    """Make all pages and list them in the navigation."""
    made.update(pages())
    for section in config.nav or []:
        for title in section.keys() & SECTIONS.keys():
            section[title] += sorted(
                path for path in made if fnmatch(path, SECTIONS[title]) and path not in section[title]
            )


def pages() -> dict[str, str]:
    """Every page that is made."""
    where = places.find()
    groups = methods.modules(where)
    views = committed(ROOT / "docs" / "results")
    every = [conf.compose(where.conf, "dataset", name) for name in conf.options(where.conf, "dataset")]
    entries = [entry for entry in every if not entry.private]
    studies = [conf.compose(where.conf, "study", name) for name in conf.options(where.conf, "study")]
    table = cells(views)
    names = {entry.name: f"datasets/{entry.name}.html" for entry in entries}
    names |= {m.header.name: f"methods/{name}.html" for name, group in groups.items() for m in group}
    names |= {view.folder.name: f"results/{view.folder.name}/index.html" for view in views}
    catalogue = methods.Catalogue(where, table, views, names, [type(group[0].hyper) for group in groups.values()])
    texts = {path: relinked((ROOT / source).read_text()) for path, source in FROM_ROOT.items()}
    texts |= {f"methods/{name}.md": methods.page(name, group, catalogue) for name, group in groups.items()}
    texts |= {f"datasets/{e.name}.md": datasets.page(e, where, studies, table, names) for e in entries}
    texts |= {f"results/{v.folder.name}/index.md": runs.page(v, table, names) for v in views}
    return texts | {
        "methods/index.md": methods.index(groups),
        "datasets/index.md": datasets.index(entries),
        "results/index.md": runs.explorer(views, names),
        "functions.md": reference_pages.functions(),
        "errata/index.md": reference_pages.errata(ROOT / "docs" / "errata"),
        "tour.md": notebook.page(nbformat.read(EXECUTED, as_version=4)),
    }


def relinked(markdown: str) -> str:
    """A page of the root of the repository with the links of the site."""
    for path, source in FROM_ROOT.items():
        markdown = markdown.replace(f"]({source})", f"]({path})").replace(f"](docs/../{source})", f"]({path})")
    return markdown.replace("](docs/", "](")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Hand over the pages and the files beside them."""
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    for path, source in FILES.items():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to folders and to the notebook to their pages, and draw the architecture without a script."""
    if page.file.src_uri == "architecture.md":
        markdown = reference_pages.without_mermaid(markdown)
    markdown = markdown.replace("](tour.ipynb)", "](tour.md)")
    return re.sub(r"\]\(((?:[\w.-]+/)+)\)", r"](\1index.md)", markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make every table sortable, and one that is wider than the screen one that keys can scroll."""
    return BARE_TABLE.sub(r'<div class="scroll" tabindex="0"><table class="sortable">\1</table></div>', html)
