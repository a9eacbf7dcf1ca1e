"""The pages in a real browser, on the server that the command uses, without any network."""

import time

import pytest

from deepinsight.dashboard import create_app
from deepinsight.dashboard.pages.runs import callbacks as runs_page
from deepinsight.dashboard.parts import TICK_MS
from deepinsight.report import write_report
from deepinsight.traces import TraceWriter

pytestmark = pytest.mark.timeout(120)

#: Figures that a page shows, and whether they hold data or say why not.
FIGURES = """
return Array.from(document.querySelectorAll('.js-plotly-plot')).map(plot => ({
  id: plot.parentElement.id || plot.id,
  traces: (plot._fullData || []).length,
  points: (plot._fullData || []).reduce((sum, t) => sum + (t.z || t.y || t.x || []).length, 0),
  note: ((plot.layout || {}).annotations || []).map(a => a.text).join(' '),
  title: ((plot.layout || {}).title || {}).text || '',
  drawn: plot.querySelectorAll('.main-svg').length,
}));
"""


def wait_until(condition, what, seconds=60.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except Exception as error:
            if "stale element" not in str(error):
                raise
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


def figures(browser, count):
    """All figures of the page, once each of them has data or says why it has none."""

    def ready():
        found = browser.execute_script(FIGURES)
        done = [figure for figure in found if figure["title"] and figure["drawn"]]
        return found if len(done) == count == len(found) else None

    return wait_until(ready, f"{count} figures: {browser.execute_script(FIGURES)}")


def problems(browser):
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def title_of(browser, graph):
    # A page that is being built again shows a figure without a title for a moment.
    script = f"return document.querySelector('#{graph} .js-plotly-plot')?.layout?.title?.text || ''"
    return browser.execute_script(script)


@pytest.fixture(scope="module")
def site(serve, runs_folder):
    return serve(runs_folder)


@pytest.fixture(autouse=True)
def _clean_console(browser):
    browser.get_log("browser")


PAGES = {
    "weights": ("/weights?run=ctr-async", 4),
    "weights of a diverged run": ("/weights?run=experiments/diverged", 4),
    "staleness": ("/staleness?run=ctr-async", 4),
    "auc": ("/auc?run=ctr-async", 3),
    "optimizer": ("/optimizer?run=ctr-sync", 1),
    "optimizers of two runs": ("/optimizer?run=ctr-async&run=ctr-sync&against=samples", 1),
    "compare": ("/compare?run=ctr-async&run=ctr-sync&against=samples", 1),
}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_draws_its_figures_without_a_console_error(browser, site, page):
    path, count = PAGES[page]
    browser.get(site + path)
    for figure in figures(browser, count):
        assert figure["traces"] > 0, figure
        assert figure["points"] > 0, figure
    assert "DeepInsight" in browser.title
    assert problems(browser) == []
    overflow = "return document.documentElement.scrollWidth - window.innerWidth"
    assert browser.execute_script(overflow) <= 0


def test_the_list_of_runs_leads_to_a_run(browser, site):
    browser.get(site)
    link = wait_until(
        lambda: browser.find_elements("link text", "experiments/diverged"), "the table"
    )[0]
    assert len(browser.find_elements("css selector", ".runs tbody th")) >= 9
    link.click()
    wait_until(lambda: "/weights?run=experiments%2Fdiverged" in browser.current_url, "the address")
    figures(browser, 4)
    browser.find_element("link text", "AUC").click()
    wait_until(lambda: "/auc?run=experiments%2Fdiverged" in browser.current_url, "the address")
    figures(browser, 3)
    assert browser.title == "AUC · DeepInsight"
    assert problems(browser) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/weights?run=../outside", "There is no run named"),
        ("/weights?run=link-out", "There is no run named"),
        ("/staleness?run=gone", "There is no run named"),
        ("/auc?run=broken-json", "not valid JSON"),
        ("/weights?run=cut-segment", "repair"),
        ("/weights?run=nothing-yet", "nothing recorded yet"),
        ("/compare?run=gone", "There is no run named"),
        ("/optimizer?run=gone", "There is no run named"),
        ("/optimizer?run=cut-segment", "repair"),
    ],
)
def test_what_cannot_be_shown_is_said_in_the_page(browser, site, path, message):
    browser.get(site + path)
    banner = wait_until(
        lambda: browser.find_elements("css selector", ".banner > *"), "a message in the page"
    )
    assert message in banner[0].find_element("xpath", "..").text
    time.sleep(0.5)
    assert "Traceback" not in browser.page_source
    assert problems(browser) == []


def test_an_empty_folder_says_what_to_do(browser, serve, tmp_path):
    browser.get(serve(tmp_path))
    wait_until(lambda: "no runs in this folder yet" in browser.page_source, "the advice")
    assert problems(browser) == []


def test_hostile_names_stay_text(browser, site):
    browser.get(site)
    wait_until(lambda: browser.find_elements("partial link text", "<img src=x"), "the table")
    browser.get(site + "/weights?run=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    figures(browser, 4)
    assert browser.find_elements("css selector", "img[src='x']") == []
    assert problems(browser) == []


def test_the_slider_moves_by_keyboard_and_the_address_follows(browser, site):
    browser.get(site + "/weights?run=ctr-async&variable=fc1/kernel")
    figures(browser, 4)
    assert title_of(browser, "weights-heatmap").endswith("step 350")
    thumb = browser.find_element("css selector", "#weights-slider [role=slider]")
    thumb.send_keys("\ue012")  # arrow left
    wait_until(lambda: title_of(browser, "weights-heatmap").endswith("step 300"), "the snapshot")
    wait_until(lambda: "step=300" in browser.current_url, "the step in the address")
    assert "step 300 · 7 of 8" in browser.find_element("id", "weights-readout").text
    address = browser.current_url
    browser.get("about:blank")
    browser.get(address)
    figures(browser, 4)
    assert title_of(browser, "weights-heatmap").endswith("step 300")
    assert problems(browser) == []


def test_another_variable_and_back_with_the_browsers_button(browser, site):
    browser.get(site + "/weights?run=ctr-async&variable=fc1/kernel")
    figures(browser, 4)
    browser.find_element("id", "weights-variable").click()
    option = "//div[contains(@class,'dash-dropdown-content')]//*[text()='fc2/kernel']"
    wait_until(lambda: browser.find_elements("xpath", option), "the list")[0].click()
    wait_until(lambda: "fc2/kernel" in title_of(browser, "weights-heatmap"), "the variable")
    wait_until(lambda: "variable=fc2%2Fkernel" in browser.current_url, "the address")
    browser.back()
    wait_until(lambda: "fc1/kernel" in title_of(browser, "weights-heatmap"), "the way back")
    assert problems(browser) == []


def test_seconds_instead_of_steps(browser, site):
    browser.get(site + "/compare?run=ctr-async&run=ctr-sync&stream=train/loss")
    assert figures(browser, 1)[0]["traces"] == 4
    browser.find_elements("css selector", "#compare-against input")[2].click()
    wait_until(lambda: title_of(browser, "compare-figure").endswith("seconds"), "the axis")
    assert "against=seconds" in browser.current_url
    rows = browser.find_elements("css selector", "#compare-table tbody tr")
    assert len(rows) == 4
    assert problems(browser) == []


#: Texts of the optimizer page's panels that leave the picture or run into their neighbours.
OVERLAPS = """
const plot = document.querySelector('#optimizer-figure .js-plotly-plot');
const whole = plot.getBoundingClientRect();
const boxes = Array.from(plot.querySelectorAll(
  '.annotation-text-g, text[class*="title"], g[class$="tick"] text, .legend'
)).map(text => [text.textContent, text.getBoundingClientRect()]).filter(([, b]) => b.width);
const wrong = boxes.filter(([, b]) => b.left < whole.left || b.right > whole.right
  || b.top < whole.top || b.bottom > whole.bottom).map(([text]) => text);
boxes.forEach(([text, a], i) => boxes.slice(0, i).forEach(([other, b]) => {
  if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
    wrong.push(text + ' | ' + other);
}));
return [boxes.length, wrong];
"""


@pytest.mark.parametrize("width", [1400, 1000])
def test_the_panels_of_the_optimizer_page_keep_apart(browser, site, width):
    browser.set_window_size(width, 900)
    try:
        browser.get(site + "/optimizer?run=ctr-async&run=ctr-sync")
        figures(browser, 1)
        wait_until(lambda: browser.execute_script(OVERLAPS)[0] > 60, "the texts")
        wait_until(lambda: not browser.execute_script(OVERLAPS)[1], "texts that keep apart", 10)
        overflow = "return document.documentElement.scrollWidth - window.innerWidth"
        assert browser.execute_script(overflow) <= 0
    finally:
        browser.set_window_size(1400, 900)


def test_another_run_joins_on_the_optimizer_page(browser, site):
    browser.get(site + "/optimizer?run=ctr-sync")
    alone = figures(browser, 1)[0]["traces"]
    rows = "#optimizer-table tbody tr"
    wait_until(lambda: len(browser.find_elements("css selector", rows)) == 2, "the totals")
    browser.find_element("id", "optimizer-runs").click()
    option = "//div[contains(@class,'dash-dropdown-content')]//*[text()='ctr-async']"
    wait_until(lambda: browser.find_elements("xpath", option), "the list")[0].click()
    wait_until(lambda: "run=ctr-async" in browser.current_url, "the address")
    wait_until(lambda: len(browser.find_elements("css selector", rows)) == 4, "its totals")
    wait_until(lambda: figures(browser, 1)[0]["traces"] != alone, "its lines")
    assert problems(browser) == []


PANELS = """
const plot = document.querySelector('#optimizer-figure .js-plotly-plot');
const data = plot._fullData || [];
return [new Set(data.map(line => line.xaxis)).size,
  data.reduce((sum, line) => sum + line.x.length, 0)];
"""


def test_the_optimizer_page_follows_a_run_to_new_rows_and_new_panels(browser, serve, tmp_path):
    address = serve(tmp_path)
    with TraceWriter(tmp_path / "live", "worker-0") as writer:
        for step in range(20):
            writer.record("sync/wait_time", 0.1 * step, step=step, unit="s")
        writer.flush()
        browser.get(address + "/optimizer?run=live")
        figures(browser, 1)
        wait_until(lambda: browser.execute_script(PANELS) == [1, 20], "the first rows")
        browser.execute_script("window.sameDocument = true")
        for step in range(20, 30):
            writer.record("sync/wait_time", 0.1 * step, step=step, unit="s")
        writer.flush()
        wait_until(lambda: browser.execute_script(PANELS) == [1, 30], "more rows")
        writer.record("sync/rounds", 1, step=30, unit="rounds")
        writer.flush()
        wait_until(lambda: browser.execute_script(PANELS) == [2, 31], "another panel")
        assert browser.execute_script("return window.sameDocument") is True
        assert problems(browser) == []


def test_a_run_without_optimizer_streams_says_how_to_get_some(browser, site):
    browser.get(site + "/optimizer?run=keras")
    assert "trace_tensor" in figures(browser, 1)[0]["note"]
    assert problems(browser) == []


ZOOM = """
const plot = document.querySelector('#auc-history .js-plotly-plot');
return plot._fullLayout.xaxis.range.map(Number);
"""
POINTS = """
const plot = document.querySelector('#auc-history .js-plotly-plot');
return plot._fullData.length ? plot._fullData[0].x.length : 0;
"""


def zoom_in(browser):
    """Drag over the middle of the figure, as a user does."""
    from selenium.webdriver import ActionChains

    area = browser.find_element("css selector", "#auc-history .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", area)
    mouse = ActionChains(browser, duration=60)
    mouse.move_to_element_with_offset(area, -100, 0).click_and_hold()
    mouse.move_by_offset(60, 2).move_by_offset(60, 0).release().perform()


def test_a_live_run_is_followed_without_reload_and_keeps_the_zoom(
    browser, serve, example_runs, tmp_path
):
    writer = example_runs.start_live_run(tmp_path / "live", 0.02)
    try:
        address = serve(tmp_path)
        browser.get(address + "/auc?run=live")
        figures(browser, 3)
        wait_until(lambda: browser.execute_script(POINTS), "the first points")
        browser.execute_script("window.sameDocument = true")
        whole = browser.execute_script(ZOOM)
        zoom_in(browser)
        wait_until(lambda: browser.execute_script(ZOOM)[0] > whole[0] + 5, "the zoom")
        zoomed = browser.execute_script(ZOOM)
        before = browser.execute_script(POINTS)
        wait_until(lambda: browser.execute_script(POINTS) > before + 20, "more points")
        assert browser.execute_script(ZOOM) == pytest.approx(zoomed)
        wait_until(lambda: browser.execute_script(POINTS) > before + 150, "still more points")
        assert browser.execute_script(ZOOM) == pytest.approx(zoomed)
        assert browser.execute_script("return window.sameDocument") is True
        assert browser.find_element("css selector", ".badge").text == "live"
        browser.find_element("link text", "Weights").click()
        figures(browser, 4)
        first = title_of(browser, "weights-heatmap")
        wait_until(lambda: title_of(browser, "weights-heatmap") != first, "a newer snapshot")
        assert "follows the newest" in browser.find_element("id", "weights-readout").text
        browser.find_element("link text", "Runs").click()
        step = "//th[contains(., 'live')]/../td[6]"
        shown = wait_until(lambda: browser.find_elements("xpath", step), "the table")[0].text
        wait_until(
            lambda: browser.find_element("xpath", step).text not in (shown, ""), "a later step"
        )
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    wait_until(
        lambda: browser.find_element("css selector", ".badge").text == "crashed", "the crash"
    )
    assert problems(browser) == []


def test_the_first_run_appears_while_one_looks(browser, serve, example_runs, tmp_path):
    browser.get(serve(tmp_path) + "/staleness")
    wait_until(lambda: browser.find_elements("css selector", ".banner > *"), "the page")
    assert "no runs in this folder yet" in browser.find_element("css selector", ".banner").text
    example_runs.write_keras_run(tmp_path / "first", steps=20)
    wait_until(
        lambda: "Choose a run" in browser.find_element("css selector", ".banner").text, "the run"
    )
    assert problems(browser) == []


def test_a_token_opens_the_page_once_for_all(new_browser, serve, runs_folder):
    stranger = new_browser()
    address = serve(runs_folder, token="correct-horse-battery")
    stranger.get(address)
    assert "Token required" in stranger.page_source
    stranger.get(f"{address}/auc?run=ctr-async&token=correct-horse-battery")
    assert "token" not in stranger.current_url
    stranger.get_log("browser")
    figures(stranger, 3)
    assert stranger.execute_script("return document.cookie") == ""
    stranger.get(f"{address}/weights?run=ctr-async")
    figures(stranger, 4)
    assert problems(stranger) == []


def test_nothing_hangs_over_the_edge_of_a_narrow_window(browser, site):
    size = browser.get_window_size()
    browser.set_window_size(800, 900)
    try:
        for path, count in PAGES.values():
            browser.get(site + path)
            figures(browser, count)
            time.sleep(0.2)
            wide = """return Array.from(document.querySelectorAll('.card, .js-plotly-plot'))
                .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1).length"""
            assert browser.execute_script(wide) == 0, path
    finally:
        browser.set_window_size(size["width"], size["height"])


def test_the_report_opens_from_disk_and_draws_everything(browser, runs_folder, tmp_path):
    runs = [runs_folder / "ctr-async", runs_folder / "ctr-sync"]
    report = write_report(runs, tmp_path / "report.html", most_variables=2)
    browser.get(report.as_uri())
    wait_until(lambda: browser.execute_script("return document.body.dataset.drawn"), "the end", 60)
    drawn = browser.execute_script(FIGURES)
    assert len(drawn) == len(browser.find_elements("css selector", "figure")) > 15
    for figure in drawn:
        assert figure["drawn"], figure
        assert figure["points"] > 0, figure
    assert problems(browser) == []


def test_the_app_keeps_its_assets_at_home(runs_folder):
    client = create_app(runs_folder).server.test_client()
    page = client.get("/").text
    for name in ("style.css", "favicon.svg"):
        assert f"/assets/{name}" in page
        with client.get(f"/assets/{name}") as response:
            assert response.status_code == 200


def test_a_table_that_takes_longer_than_a_tick_arrives(browser, serve, tmp_path, monkeypatch):
    """Many runs on a busy machine: no tick may end the call that is under way."""
    with TraceWriter(tmp_path / "slow", "main") as writer:
        writer.record("train/loss", 0.5, step=1)
    read = runs_page.summary_or_reason

    def slowly(folder, key):
        time.sleep(1.5 * TICK_MS / 1000)
        return read(folder, key)

    monkeypatch.setattr(runs_page, "summary_or_reason", slowly)
    browser.get(serve(tmp_path))
    cells = "return document.querySelector('table.runs')?.innerText || ''"
    wait_until(lambda: "slow" in browser.execute_script(cells), "the table", seconds=30)
