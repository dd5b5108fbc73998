"""The built site in a real browser: `make site-test`. Its pages are opened as files, with no network at all.

The browser is the Chromium or Chrome of the system; `SITE_SHOTS=FOLDER` keeps pictures of all widths for a look."""

import os
import re
import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

SITE = Path(__file__).parents[2] / "site"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
PAGES = (
    *("index", "tour", "results/index", "results/uci_common/index", "methods/index", "methods/dsvi", "datasets/index"),
    *("datasets/power", "papers/rossi2021", "papers", "troubleshooting", "glossary", "config", "functions"),
    *("architecture", "scorecard/scorecard", "errata/index"),
)
WIDTHS = {390: 844, 1280: 900}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "preload": False}
THIN = """
const alike = document.querySelectorAll("tbody tr:nth-child(n+9), pre span:nth-of-type(n+200)");
for (const one of alike) one.remove();
for (const list of document.querySelectorAll(".md-sidebar__scrollwrap")) list.scrollTop = 0;
"""
"""Take away rows and words of code that are like those before them, of which axe would need minutes, and scroll lists
back, so that no entry lies half behind their heading."""


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.fail("no Chromium or Chrome on this machine; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A page without a network that collects what goes wrong on it."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    opened, opened.faults = context.new_page(), []
    opened.set_default_timeout(20000)
    opened.on("console", lambda message: opened.faults.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: opened.faults.append(str(error)))
    opened.on("request", lambda r: opened.faults.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    yield opened
    context.close()


def visit(page: Page, name: str) -> None:
    page.goto((SITE / f"{name}.html").as_uri())


@pytest.mark.parametrize("name", PAGES)
def test_pages_load_without_errors_requests_or_overflow_and_are_accessible(page, name):
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        visit(page, name)
        picture(page, f"{name}-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
    assert page.faults == []


def violations(page: Page) -> list[str]:
    """What axe finds, at most five places."""
    page.evaluate(THIN)
    found = Axe().run(page, options=RULES).response["violations"]
    return sorted({f"{v['id']}: {node['html'][:120]}" for v in found for node in v["nodes"]})[:5]


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("SITE_SHOTS"):
        page.screenshot(path=Path(folder) / f"{name.replace('/', '_')}.png")


def test_dark_pages_have_contrast(page):
    page.emulate_media(color_scheme="dark")
    for name in ("index", "results/index", "methods/dsvi"):
        visit(page, name)
        assert violations(page) == []
        picture(page, f"{name}-dark")


def test_search_finds_without_a_server(page):
    visit(page, "index")
    page.keyboard.press("/")
    page.keyboard.type("doubly stochastic")
    page.wait_for_selector(".md-search-result__link")
    assert "methods/dsvi" in " ".join(
        a.get_attribute("href") for a in page.query_selector_all(".md-search-result__link")
    )


def test_results_are_filtered_and_sorted_by_keys(page):
    visit(page, "results/index")
    rows = page.locator("#cells tbody tr:visible")
    everything = rows.count()
    page.get_by_role("combobox", name="data set").select_option("power")
    assert 0 < rows.count() < everything
    assert set(page.locator("#cells tbody tr:visible td:first-child").all_text_contents()) == {"power"}
    page.locator("[data-explore=filter]").get_by_role("searchbox").fill("svgp quick")
    assert 0 < rows.count() < 6
    head = page.locator("#cells thead button", has_text="MNLL")
    head.focus()
    page.keyboard.press("Enter")
    values = [
        float(re.match(r"-?[\d.]+", t)[0])
        for t in page.locator("#cells tbody tr:visible td:nth-child(4)").all_text_contents()
    ]
    assert values == sorted(values)


def test_two_methods_are_paired_either_way(page):
    visit(page, "results/index")
    box = page.locator("[data-explore=pair]")
    box.get_by_role("combobox", name="first").select_option("svgp")
    box.get_by_role("combobox", name="second").select_option("dsvi")
    one = page.locator("#pairs tbody td:nth-child(2)").all_text_contents()
    box.get_by_role("combobox", name="first").select_option("dsvi")
    box.get_by_role("combobox", name="second").select_option("svgp")
    other = page.locator("#pairs tbody td:nth-child(2)").all_text_contents()
    numbers = [[float(re.match(r"\+?(-?[\d.e-]+)", text)[1]) for text in texts] for texts in (one, other)]
    assert numbers[0] == [-x for x in numbers[1]]
    assert box.locator("svg circle").count() == len(one) > 5


def test_ranks_are_drawn_and_one_method_is_highlighted(page):
    visit(page, "results/index")
    box = page.locator("[data-explore=ranks]")
    assert box.locator("polyline").count() == page.locator("#ranks tbody tr").count()
    box.get_by_role("combobox", name="highlight").select_option(label="SVGP")
    assert box.locator("polyline.mark").count() == 1


def test_everything_is_there_without_a_script(browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    visit(page, "results/index")
    for name in ("cells", "pairs", "ranks"):
        assert page.locator(f"#{name} tbody tr").count() > 1
    assert page.locator(".explore").first.is_hidden()
    context.close()
