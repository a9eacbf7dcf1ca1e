"""What holds for every figure."""

import doctest
import importlib
import pkgutil

import plotly.graph_objects as go
import pytest

from deepinsight import figures
from deepinsight.figures import empty_figure, is_empty_figure

PAIRS = sorted(name.removeprefix("plot_") for name in figures.__all__ if name.startswith("plot_"))
NEEDS_VARIABLE = {"group_energy", "weight_distribution", "weight_heatmap"}


def draw(pair, run):
    compute = getattr(figures, f"compute_{pair}_info")
    if pair == "comparison":
        info = compute({run.name: run}, "train/loss")
    elif pair == "optimizer":
        info = compute({run.name: run})
    else:
        info = compute(run, "fc1/kernel") if pair in NEEDS_VARIABLE else compute(run)
    return getattr(figures, f"plot_{pair}")(info)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", ["async", "diverged"])
def test_axes_carry_titles_and_the_figure_a_revision(open_example, pair, name):
    figure = draw(pair, open_example(name))
    assert not is_empty_figure(figure)
    assert figure.layout.title.text
    assert figure.layout.uirevision
    shown = [figure.layout.yaxis2 if pair == "weight_heatmap" else figure.layout.yaxis]
    shown.append(figure.layout.xaxis2 if pair == "gradient_norms" else figure.layout.xaxis)
    for axis in shown:
        text = axis.title.text or ""
        named_elsewhere = pair in ("staleness_variables", "optimizer")
        assert "(" in text or (named_elsewhere and axis is figure.layout.yaxis)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_run_that_nobody_has_written_to_gives_a_figure_that_says_why(record, pair):
    figure = draw(pair, record())
    assert is_empty_figure(figure)
    assert len(figure.layout.annotations[0].text) > 20


@pytest.mark.parametrize("pair", PAIRS)
def test_the_same_run_gives_the_same_figure(open_example, pair):
    assert draw(pair, open_example("async")) == draw(pair, open_example("async"))


def test_an_empty_figure_wraps_and_escapes_its_reason():
    figure = empty_figure("<T>", "word " * 60 + "<script>")
    assert figure.layout.title.text == "&lt;T&gt;"
    text = figure.layout.annotations[0].text
    assert text.count("<br>") >= 3
    assert text.endswith("&lt;script&gt;")
    assert not is_empty_figure(go.Figure())


def test_the_public_names_are_sorted_and_there():
    assert figures.__all__ == sorted(figures.__all__, key=lambda n: (not n.isupper(), n))
    for name in figures.__all__:
        assert hasattr(figures, name)


def test_the_button_that_uploads_a_chart_is_off():
    assert figures.GRAPH_CONFIG["showSendToCloud"] is False


@pytest.mark.parametrize(
    "module", [m.name for m in pkgutil.iter_modules(figures.__path__, "deepinsight.figures.")]
)
def test_the_examples_in_the_docstrings_hold(module):
    assert (
        doctest.testmod(
            importlib.import_module(module), extraglobs={"np": importlib.import_module("numpy")}
        ).failed
        == 0
    )
