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
    svg = page.locator(f"#figure-{key} > svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    tip = page.locator(f"#figure-{key} .tip")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "on" in tip.get_attribute("class")
    assert any(c.isdigit() for c in tip.inner_text())
    patches = tip.locator("i").evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
    assert "rgba(0, 0, 0, 0)" not in patches and (len(set(patches)) > 1 or key == "ttft"), "of the series' colours"
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


A4 = 703  # CSS pixels between margins of 12 mm


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_nothing_is_cut_off_on_paper(report, open_page, kind):
    """A table that scrolls on a screen fits a sheet when printed."""
    if kind == "sweep":
        keys = ("engine.preset", "traffic.synthetic.arrivals.rate")
        summary = summarize(simulated_run(100, 8), with_intervals=False)
        wide = {
            key: 123_456.0 for key in summary
            if key.endswith("_ms") or key in ("output_throughput", "request_throughput")
        }  # fmt: skip
        figures = {key: [value * 0.9, value * 1.1] for key, value in wide.items()}
        summary |= wide | {"slo_attainment": 0.5, "interval": {"level": 0.8, "from": ["cost"], "figures": figures}}
        points = [{"settings": {keys[0]: "vllm", keys[1]: rate}, "summary": summary} for rate in (1.04109, 2.43803)]
        report = render_sweep(points, list(keys))
    page = open_page(report, viewport={"width": A4, "height": 1000})
    page.emulate_media(media="print")
    wide = page.evaluate("[...document.querySelectorAll('table, svg')].map(e => e.getBoundingClientRect().right)")
    assert len(wide) > 2 and max(wide) <= A4


def test_small_print_has_the_contrast_that_reading_needs(report, open_page):
    """4.5 to 1 (WCAG 2.2, 1.4.3) between the faintest text and both grounds, in light and in dark."""
    names = ("ink", "soft", "faint", "good", "warn", "bad", "accent")
    for scheme in ("light", "dark"):
        page = open_page(report, color_scheme=scheme)
        value = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"
        grounds = [page.evaluate(value, name) for name in ("card", "bg")]
        for name in names:
            found = [contrast(page.evaluate(value, name), ground) for ground in grounds]
            assert min(found) >= 4.5, (scheme, name, found)


def contrast(one: str, other: str) -> float:
    """Ratio of the relative luminances of two colours, each #rrggbb."""
    found = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        found.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(found) / min(found)


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
    box = page.locator("#figure-throughput > svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2)
    assert "rate" in page.locator("#figure-throughput .tip").inner_text()


# zoom


def test_marks_of_every_shape_move_when_a_sweep_is_zoomed(open_page):
    """Circles and the others alike: their distances grow, their shapes do not."""
    points = [
        {"settings": {"load.rate": rate, "engine.preset": preset}, "summary": summary}
        for rate, summary in ((r, summarize(simulated_run(60, r), with_intervals=False)) for r in (2, 8, 16, 32))
        for preset in ("a", "b")
    ]
    page = open_page(render_sweep(points, ["load.rate", "engine.preset"]), viewport={"width": 1200, "height": 900})
    inside = "[...document.querySelectorAll('#figure-throughput [data-series=\"%d\"] .point')]"
    boxes = inside + ".map(e => e.getBoundingClientRect()).map(b => [b.x + b.width / 2, b.width])"
    before = [page.evaluate(boxes % series) for series in (0, 1)]
    drag(page, "throughput", 0.2, 0.9)
    after = [page.evaluate(boxes % series) for series in (0, 1)]
    for one, two in zip(before, after, strict=True):
        assert two[2][0] - two[1][0] > 1.2 * (one[2][0] - one[1][0])
        assert two[1][1] == pytest.approx(one[1][1], abs=0.1)
    assert after[0][1][0] == pytest.approx(after[1][1][0], abs=0.5), "of the same load in the same place"


def drag(page, key: str, start: float, end: float) -> None:
    """Drag over a figure, from one share of its width to another."""
    svg = page.locator(f"#figure-{key} > svg")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (start + end) / 2, middle, steps=3)
    page.mouse.move(box["x"] + box["width"] * end, middle, steps=3)
    page.mouse.up()


def tick_values(page, key: str) -> list[str]:
    return page.locator(f"#figure-{key} .xticks text").all_text_contents()


@pytest.mark.parametrize("key", ["throughput", "kv", "ttft"])
def test_dragging_zooms_and_the_button_goes_back(report, open_page, key):
    page = open_page(report, viewport={"width": 1200, "height": 900})
    before = tick_values(page, key)
    button = page.locator(f"#figure-{key} .reset")
    assert not button.is_visible()
    drag(page, key, 0.4, 0.6)
    assert tick_values(page, key) != before
    assert button.is_visible()
    group = page.locator(f"#figure-{key} [data-series], #figure-{key} .bars").first
    assert "clip" in group.get_attribute("clip-path")
    button.click()
    assert tick_values(page, key) == before
    assert group.get_attribute("clip-path") is None
    assert not button.is_visible()


def test_a_zoomed_figure_still_tells_values_and_hides_series(report, open_page):
    page = open_page(report, viewport={"width": 1200, "height": 900})
    drag(page, "throughput", 0.5, 0.7)
    svg = page.locator("#figure-throughput > svg")
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    head = page.locator("#figure-throughput .tip > b").inner_text()
    low, high = (
        float(t.removesuffix("k")) for t in (tick_values(page, "throughput")[0], tick_values(page, "throughput")[-1])
    )
    assert low * 0.5 <= float(head.split()[0]) <= high * 1.5
    page.locator("#figure-throughput .legend button").first.click()
    assert not page.locator('#figure-throughput [data-series="0"]').is_visible()
    svg.dblclick()
    assert not page.locator("#figure-throughput .reset").is_visible()


def test_layers_sink_in_a_zoomed_figure_too(report, open_page):
    page = open_page(report, viewport={"width": 1200, "height": 900})
    drag(page, "kv", 0.3, 0.8)
    path = page.locator('#figure-kv [data-series="1"] path')
    before = path.get_attribute("d")
    page.locator("#figure-kv .legend button").first.click()
    assert path.get_attribute("d") != before
    page.locator("#figure-kv .legend button").first.click()
    page.locator("#figure-kv .reset").click()
    assert page.locator('#figure-kv [data-series="1"]').is_visible()


def test_everything_by_keyboard(report, open_page):
    page = open_page(report, viewport={"width": 1200, "height": 900})
    page.locator("#figure-throughput > svg").focus()
    before = tick_values(page, "throughput")
    tip = page.locator("#figure-throughput .tip")
    page.keyboard.press("ArrowRight")
    first = tip.inner_text()
    page.keyboard.press("Shift+ArrowRight")
    assert "on" in tip.get_attribute("class")
    assert tip.inner_text() != first
    assert tip.get_attribute("role") == "status", "a screen reader reads it out"
    for _ in range(3):
        page.keyboard.press("+")
    assert tick_values(page, "throughput") != before
    page.keyboard.press("-")
    page.keyboard.press("0")
    assert tick_values(page, "throughput") == before
    # series, theme and filter are reached with Tab alone
    page.locator("nav a").first.focus()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('class') || document.activeElement.tagName"))
    assert {"theme", "filter", "svg", "BUTTON"} <= reached
    page.locator("#figure-queue .legend button").first.focus()
    page.keyboard.press("Space")
    assert not page.locator('#figure-queue [data-series="0"]').is_visible()


def test_focus_is_visible(report, open_page):
    page = open_page(report)
    page.locator("nav a").first.focus()
    page.keyboard.press("Tab")
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert style != "none"


def test_zooming_does_not_print(report, open_page):
    page = open_page(report, viewport={"width": 1200, "height": 900})
    drag(page, "throughput", 0.4, 0.6)
    page.emulate_media(media="print")
    assert not page.locator("#figure-throughput .reset").is_visible()


# small runs and large ones, comparisons


def test_every_request_of_a_small_run(open_page):
    run = simulated_run(40, 12, max_num_seqs=6)
    page = open_page(render_report(run, summarize(run)), viewport={"width": 1200, "height": 900})
    figure = page.locator("#figure-gantt")
    assert figure.locator("[data-series] rect").count() > 80
    figure.locator("> svg").scroll_into_view_if_needed()
    box = figure.locator("> svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.5)
    assert "request" in figure.locator(".tip").inner_text()
    assert "decode" in figure.locator(".tip").inner_text()
    drag(page, "gantt", 0.3, 0.5)
    assert figure.locator(".reset").is_visible()


def test_a_hundred_thousand_requests(open_page):
    """Nothing on the page goes with the number of requests: its size and what a browser has to lay out stay small."""
    import numpy as np

    n = 100_000
    rng = np.random.default_rng(0)
    sent = np.cumsum(rng.exponential(0.02, n))
    first = sent + rng.exponential(0.2, n)
    r = make_requests(
        n, sent=sent, queued=sent, admitted=sent, first_token=first, finish=first + rng.exponential(2, n), output_tokens=50,
        input_tokens=500, status=np.where(rng.random(n) < 0.01, "failed", "finished"),
        reason=[f"<img src=x onerror=alert({i})>" for i in range(n)],
    )  # fmt: skip
    run = make_run(r)
    text = render_report(run, summarize(run))
    assert len(text.encode()) < 5_000_000
    page = open_page(text)
    assert page.locator("*").count() < 5000
    assert page.evaluate("performance.getEntriesByType('navigation')[0].duration") < 20_000
    assert "100,000" in page.inner_text("main")


def test_a_comparison(open_page):
    from reports.compare import compare
    from reports.html.compare_page import render_comparison
    from reports.subject import Subject

    hostile = "<script>alert(1)</script>"
    runs = [simulated_run(150, 12, max_num_seqs=seats) for seats in (64, 8)]
    page = open_page(
        render_comparison(compare([Subject.of(run).named(f"{hostile} {i}") for i, run in enumerate(runs)])),
        viewport={"width": 1200, "height": 900},
    )
    assert hostile in page.inner_text("h1")
    page.locator("#figure-cdf_ttft > svg").scroll_into_view_if_needed()
    box = page.locator("#figure-cdf_ttft > svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "%" in page.locator("#figure-cdf_ttft .tip").inner_text()
    drag(page, "cdf_ttft", 0.3, 0.6)
    assert page.locator("#figure-cdf_ttft .reset").is_visible()
    page.locator("#figure-over_tokens .legend button").first.click()
    assert not page.locator('#figure-over_tokens [data-series="0"]').is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
