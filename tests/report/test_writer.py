import json
import os
import re
from html.parser import HTMLParser

import pytest

import deepinsight.report.writer as writer_module
from deepinsight.report import ReportError, write_report
from deepinsight.report.command import main
from deepinsight.report.sections import run_sections
from deepinsight.traces import TraceNotFoundError, TraceWriter, open_run


class Page(HTMLParser):
    """Elements and texts of a report, as a browser's parser sees them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.figures, self.texts, self._stack = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._stack.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        while self._stack and self._stack.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tag, attributes = self._stack[-1] if self._stack else ("", {})
        if tag == "script" and attributes.get("type") == "application/json":
            self.figures.append(json.loads(data))
        elif tag not in ("script", "style"):
            self.texts.append(data)

    def count(self, tag):
        return sum(found == tag for found, _ in self.tags)


@pytest.fixture(scope="module")
def report(runs_folder, tmp_path_factory):
    target = tmp_path_factory.mktemp("report") / "report.html"
    return write_report([runs_folder / "async", runs_folder / "sync"], target)


def test_one_file_holds_the_figures_the_library_once_and_a_comparison(report):
    text = report.read_text("utf-8")
    page = Page(text)
    assert len(page.figures) > 20
    assert text.count("plotly.js v") == 1
    headings = [t.strip() for t in page.texts if t.strip()]
    for heading in ("Summary", "Comparison", "async", "sync", "Weights: fc1/kernel", "Gradients"):
        assert heading in headings
    assert any("synchronous" in t for t in page.texts)
    assert page.count("h2") == 4


def test_nothing_is_loaded_from_elsewhere(report):
    page = Page(report.read_text("utf-8"))
    policy = next(a for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy["content"]
    assert page.count("link") == 0
    for tag, attributes in page.tags:
        assert not attributes.get("src"), tag
        assert not (attributes.get("href") or "#").startswith("http"), tag


def test_heatmaps_are_brought_down_for_the_file(report):
    page = Page(report.read_text("utf-8"))
    heights = [
        int(trace["z"]["shape"].split(",")[0])
        for figure in page.figures
        for trace in figure["data"]
        if trace["type"] == "heatmap"
    ]
    assert heights
    assert max(heights) <= 256
    assert report.stat().st_size < 9e6


def test_the_summary_shows_configuration_final_values_and_status(report):
    cells = Page(report.read_text("utf-8")).texts
    for text in ("finished", "wide-deep", "adagrad", "399 updates", "Held-out AUC", "none"):
        assert text in cells
    assert any(re.fullmatch(r"0\.8\d+ at step 360", cell) for cell in cells)


def test_what_the_optimizer_recorded_is_there_with_its_totals(report):
    page = Page(report.read_text("utf-8"))
    titles = [figure["layout"]["title"].get("text") for figure in page.figures]
    # One figure per heading, of the comparison and of each run.
    assert titles.count("What the optimizer recorded of itself") == 6
    for text in ("Optimizer", "Dropped (%)", "Mean wait (ms)", "worker-1", "400"):
        assert text in page.texts


def test_figures_of_the_optimizer_fit_on_a_sheet(tmp_path):
    with TraceWriter(tmp_path / "run", "worker-0") as writer:
        for number in range(8):
            writer.record(f"sync/q{number}", 1.0, step=0)
        writer.record("optimizer/q", 1.0, step=0)
    with open_run(tmp_path / "run") as run:
        section = next(s for s in run_sections(run, 1) if s.heading == "Optimizer")
    assert [len(figure.data) for figure in section.figures] == [6, 2, 1]
    assert max(figure.layout.height for figure in section.figures) < 1000
    assert section.table is None


def test_a_run_without_optimizer_streams_has_no_such_section(runs_folder, tmp_path):
    target = write_report([runs_folder / "keras"], tmp_path / "r.html")
    page = Page(target.read_text("utf-8"))
    assert "Optimizer" not in page.texts
    assert not [text for text in page.texts if "optimizer recorded" in text]


def test_names_and_settings_of_a_run_stay_text(runs_folder, tmp_path):
    hostile = runs_folder / "<img src=x onerror=alert(1)>"
    target = write_report([hostile, runs_folder / "keras"], tmp_path / "r.html", title="<b>t</b>")
    text = target.read_text("utf-8")
    page = Page(text)
    assert page.count("img") == 0
    assert page.count("b") == 0
    assert "<title>&lt;b&gt;t&lt;/b&gt;</title>" in text
    assert "alert(1)</script>" not in text
    # One script per figure, plotly.js, the configuration with the drawing code.
    assert page.count("script") == len(page.figures) + 2
    assert "</script><script>alert(1)</script>" in "".join(page.texts)


def test_one_run_has_no_comparison(runs_folder, tmp_path):
    page = Page(write_report([runs_folder / "keras"], tmp_path / "r.html").read_text("utf-8"))
    assert "Comparison" not in page.texts
    assert any("records no staleness" in text for text in page.texts)


def test_a_damaged_run_is_reported_with_its_warning(runs_folder, tmp_path):
    page = Page(write_report([runs_folder / "cut-segment"], tmp_path / "r").read_text("utf-8"))
    assert any("repair" in text for text in page.texts)


def test_fewer_variables_are_noted(runs_folder, tmp_path):
    path = write_report([runs_folder / "async"], tmp_path / "r.html", most_variables=1)
    page = Page(path.read_text("utf-8"))
    assert "Weights: fc2/kernel" not in page.texts
    assert any("2 smaller variables are left out" in text for text in page.texts)


def test_runs_of_the_same_name_are_told_apart(example_runs, tmp_path):
    for parent in ("a", "b"):
        example_runs.write_keras_run(tmp_path / parent / "run", steps=10)
    target = write_report([tmp_path / "a" / "run", tmp_path / "b" / "run"], tmp_path / "r.html")
    assert {"a/run", "b/run"} <= set(Page(target.read_text("utf-8")).texts)


def test_a_failure_leaves_the_older_file_and_no_rest(runs_folder, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("older")

    def half(*_):
        yield "half of it"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer_module, "render_page", half)
    with pytest.raises(ReportError, match="No space left on device"):
        write_report([runs_folder / "keras"], target)
    assert target.read_text() == "older"
    assert os.listdir(tmp_path) == ["report.html"]


def test_whoever_reads_the_older_report_keeps_it_whole(runs_folder, tmp_path):
    target = tmp_path / "report.html"
    target.write_text("older")
    with target.open() as reader:
        write_report([runs_folder / "keras"], target)
        assert reader.read() == "older"
    assert target.read_text("utf-8").endswith("</html>\n")


@pytest.mark.parametrize(
    ("output", "message"),
    [("missing/report.html", "in a folder that exists"), (".", "must be a file")],
)
def test_an_impossible_output_is_refused(runs_folder, tmp_path, output, message):
    with pytest.raises(ReportError, match=message):
        write_report([runs_folder / "keras"], tmp_path / output)


def test_arguments_are_checked(runs_folder, tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(ValueError, match="`most_variables` must be >= 0"):
        write_report([runs_folder / "keras"], tmp_path / "r.html", most_variables=-1)
    with pytest.raises(TraceNotFoundError, match="not a run"):
        write_report([runs_folder / "nowhere"], tmp_path / "r.html")


def test_the_command_says_what_it_wrote(runs_folder, tmp_path, capsys):
    target = tmp_path / "r.html"
    assert main([str(runs_folder / "keras"), "-o", str(target)]) == 0
    assert re.match(rf"Wrote {re.escape(str(target))} \(\d+\.\d MB\)", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "r.html"), "is not a run"),
        (("broken-json", "r.html"), "not valid JSON"),
        (("keras", "missing/r.html"), "cannot be written"),
    ],
)
def test_the_command_explains_what_is_wrong(runs_folder, tmp_path, capsys, arguments, message):
    run, output = arguments
    assert main([str(runs_folder / run), "-o", str(tmp_path / output)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("deepinsight report: ")
    assert message in captured.err
    assert not list(tmp_path.rglob("*.part"))
