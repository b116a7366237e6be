"""The pages in a real browser: no errors, no requests to anywhere, controls that work."""

from __future__ import annotations

import shutil

import pytest
from synthetic_runs import make_requests, make_run, simulated_run

from reports.html import render_report, render_sweep
from reports.metrics import summarize

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium binary (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens HTML text; at the end there must have been no errors and no request but for the page itself."""
    complaints, requests, contexts = [], [], []

    def load(text: str, **options):
        file = tmp_path / "page.html"
        file.write_text(text, "utf-8")
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("dialog", lambda d: (complaints.append(f"dialog {d.message}"), d.dismiss()))
        page.on("request", lambda r: requests.append(r.url))
        page.goto(file.as_uri())
        return page

    yield load
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in requests if url.startswith("file:")]) == len(contexts)


@pytest.fixture(scope="module")
def report() -> str:
    run = simulated_run(300, 25, pool=12_000, refuse=0.03)
    run.info["name"] = "<script>alert(1)</script>"
    return render_report(run, summarize(run))


def test_hiding_and_showing_series(report, open_page):
    page = open_page(report)
    button = page.locator("#figure-queue .legend button").nth(1)
    series = page.locator('#figure-queue [data-series="1"]')
    assert series.is_visible()
    button.click()
    assert not series.is_visible()
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert series.is_visible()


def test_hiding_a_layer_lets_the_others_sink(report, open_page):
    page = open_page(report)
    figure = page.locator("#figure-kv")
    first = figure.locator(".legend button").nth(0)

    def box() -> list[float]:
        return figure.locator('[data-series="1"] path').evaluate("p => [p.getBBox().y, p.getBBox().height]")

    before = box()
    first.click()
    assert box()[0] > before[0] + 5
    first.click()
    assert box() == pytest.approx(before, abs=0.5)


@pytest.mark.parametrize("key", ["ttft", "throughput", "kv"])
def test_values_under_the_pointer(report, open_page, key):
    page = open_page(report, viewport={"width": 1200, "height": 900})
    svg = page.locator(f"#figure-{key} svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    tip = page.locator(f"#figure-{key} .tip")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "on" in tip.get_attribute("class")
    assert any(c.isdigit() for c in tip.inner_text())
    page.mouse.move(0, 0)
    assert "on" not in tip.get_attribute("class")


def test_filtering_settings(report, open_page):
    page = open_page(report)
    page.locator(".filter").fill("BLOCK_SIZE")
    visible = page.locator("#settings tbody tr:visible")
    assert visible.count() == 1
    assert "engine.kv.block_size" in visible.first.inner_text()


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_light_dark_print_and_the_switch(report, open_page):
    page = open_page(report, color_scheme="dark")
    dark = background(page)
    switch = page.locator(".theme")
    switch.click()
    light = background(page)
    assert light != dark
    switch.click()
    assert background(page) == dark
    page.emulate_media(media="print")
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == "#16202b"


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_sideways_scrolling(report, open_page, width):
    page = open_page(report, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_reads_without_scripts(report, open_page):
    page = open_page(report, java_script_enabled=False)
    assert page.locator("#figure-ttft svg rect").count() > 5
    assert page.locator("h1").inner_text() == "<script>alert(1)</script>"


def test_an_empty_run(open_page):
    run = make_run(make_requests(0))
    assert "nothing was recorded" in open_page(render_report(run, summarize(run))).inner_text("main")


def test_a_sweep(open_page):
    points = [
        {
            "settings": {"load.rate": rate},
            "summary": summarize(simulated_run(100, rate), with_intervals=False),
        }
        for rate in (2, 8, 16, 32, 64)
    ]
    page = open_page(render_sweep(points, ["load.rate"]), viewport={"width": 1200, "height": 900})
    page.locator("#figure-ttft .legend button").nth(2).click()
    assert not page.locator('#figure-ttft [data-series="2"]').is_visible()
    box = page.locator("#figure-throughput svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2)
    assert "rate" in page.locator("#figure-throughput .tip").inner_text()
