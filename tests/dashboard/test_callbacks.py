"""Callback bodies as functions, and through the address that browsers send them to."""

import json
from pathlib import Path

import numpy as np
import pytest
from dash import no_update
from dash.exceptions import PreventUpdate

from deepinsight.dashboard import create_app
from deepinsight.dashboard.address import first, make_query, parse_query
from deepinsight.dashboard.follow import follow, look, without_folder
from deepinsight.dashboard.pages import PAGES
from deepinsight.dashboard.pages.auc.callbacks import draw_tiles
from deepinsight.dashboard.pages.compare.callbacks import (
    choose_stream,
    draw_table,
)
from deepinsight.dashboard.pages.compare.callbacks import write_query as write_compare_query
from deepinsight.dashboard.pages.optimizer.callbacks import draw_table as draw_totals
from deepinsight.dashboard.pages.optimizer.callbacks import write_query as write_optimizer_query
from deepinsight.dashboard.pages.runs.callbacks import update_table
from deepinsight.dashboard.pages.weights.callbacks import (
    choose_snapshot,
    choose_variable,
    move_slider,
    write_query,
)
from deepinsight.dashboard.pages.weights.layout import position_of, readout, slider_properties
from deepinsight.dashboard.parts import duration, number
from deepinsight.dashboard.runs import run_version
from deepinsight.dashboard.several import MOST_RUNS, banner, follow_runs
from deepinsight.dashboard.shell.callbacks import route
from deepinsight.traces import TraceWriter


def text_of(component):
    return json.dumps(component, default=lambda part: part.to_plotly_json(), ensure_ascii=False)


def test_the_table_shows_every_kind_of_run(runs_folder):
    table, version = update_table(runs_folder, None, None)
    text = text_of(table)
    for shown in ("ctr-async", "experiments/diverged", "crashed", "finished", "unreadable"):
        assert f'"{shown}"' in text
    assert "not valid JSON" in text
    assert str(runs_folder) not in text
    with pytest.raises(PreventUpdate):
        update_table(runs_folder, 1, version)


def test_an_empty_folder_says_how_runs_come_about(tmp_path):
    table, _ = update_table(tmp_path, None, None)
    assert "no runs in this folder yet" in text_of(table)


def test_following_sends_nothing_until_something_changes(tmp_path):
    with TraceWriter(tmp_path / "r", "main") as writer:
        writer.record("loss", 1.0, step=0)
        writer.flush()
        version = run_version(tmp_path, "r")
        with pytest.raises(PreventUpdate):
            follow(tmp_path, 1, "r", version, ["r"])
        writer.record("loss", 1.0, step=8)
        writer.flush()
        newer, banner, options = follow(tmp_path, 2, "r", version, ["r"])
    assert newer != version
    assert "step 8" in text_of(banner)
    assert options is no_update


def test_a_new_run_joins_the_list(runs_folder):
    version = run_version(runs_folder, "keras")
    outputs = follow(runs_folder, 1, "keras", version, ["keras"])
    assert outputs[:2] == (no_update, no_update)
    assert "ctr-async" in outputs[2]


def test_the_banner_says_what_is_wrong_with_a_run(runs_folder, tmp_path):
    assert "not valid JSON" in text_of(look(runs_folder, "broken-json")[0])
    assert "repair" in text_of(look(runs_folder, "cut-segment")[0])
    assert "There is no run named" in text_of(look(runs_folder, "gone")[0])
    assert "Choose a run" in text_of(look(runs_folder, None)[0])
    assert "no runs in this folder yet" in text_of(look(tmp_path, None)[0])


def test_a_run_that_disappears_is_said_once(runs_folder):
    version, banner, _ = follow(runs_folder, 1, "gone", "gone:before", [])
    assert "There is no run named" in text_of(banner)
    with pytest.raises(PreventUpdate):
        follow(runs_folder, 2, "gone", version, follow(runs_folder, 1, "gone", "", [])[2])


def test_messages_do_not_tell_where_the_folder_lies():
    assert without_folder("/srv/runs/a/1.h5: cut", Path("/srv/runs")) == "a/1.h5: cut"


@pytest.mark.parametrize(
    ("steps", "position", "expected"),
    [
        ([], 0, {"max": 1, "marks": None, "value": 0, "disabled": True}),
        ([5], 0, {"max": 1, "marks": {"0": "5"}, "value": 0, "disabled": True}),
        (
            [0, 1000],
            9,
            {"max": 1, "marks": {"0": "0", "1": "1,000"}, "value": 1, "disabled": False},
        ),
    ],
)
def test_the_slider_fits_the_snapshots(steps, position, expected):
    assert slider_properties(np.array(steps, np.int64), position) == expected


def test_a_long_slider_has_few_marks():
    properties = slider_properties(np.arange(0, 10_000, 10), 999)
    assert list(properties["marks"].values())[:2] == ["0", "1,990"]
    assert len(properties["marks"]) == 6


def test_positions_and_steps():
    steps = np.array([0, 50, 100])
    assert [position_of(steps, step) for step in (-5, 0, 49, 50, 999)] == [0, 0, 0, 1, 2]
    assert readout(steps, 1) == "step 50 · 2 of 3"
    assert readout(steps, 2).endswith("follows the newest")
    assert readout(steps[:0], 0) == "none yet"


def test_the_slider_follows_the_newest_snapshot_and_stays_elsewhere(runs_folder):
    newest = {"step": 0, "newest": True}
    assert move_slider(runs_folder, "ctr-async", "fc1/kernel", "", newest)[2] == 7
    older = {"step": 100, "newest": False}
    assert move_slider(runs_folder, "ctr-async", "fc1/kernel", "", older)[2] == 2
    assert move_slider(runs_folder, "nowhere", None, "", older)[3] is True


def test_a_position_becomes_a_step_once(runs_folder):
    chosen, text = choose_snapshot(runs_folder, "ctr-async", "fc1/kernel", 2, 7, False, None)
    assert chosen == {"run": "ctr-async", "variable": "fc1/kernel", "step": 100, "newest": False}
    assert text == "step 100 · 3 of 8"
    again, _ = choose_snapshot(runs_folder, "ctr-async", "fc1/kernel", 2, 7, False, chosen)
    assert again is no_update
    assert write_query(chosen, "run") == "?run=ctr-async&variable=fc1%2Fkernel&step=100"


@pytest.mark.parametrize(("position", "last", "single"), [(5, 5, False), (0, 1, True)])
def test_a_slider_at_its_end_follows_what_it_does_not_show_yet(runs_folder, position, last, single):
    chosen, text = choose_snapshot(
        runs_folder, "ctr-async", "fc1/kernel", position, last, single, None
    )
    assert (chosen["step"], chosen["newest"]) == (350, True)
    assert text.endswith("follows the newest")


def test_another_run_offers_its_own_variables(runs_folder):
    options, value = choose_variable(runs_folder, "keras", "", ["fc1/kernel"], "fc1/kernel")
    assert (options, value) == (["dense/kernel"], "dense/kernel")
    kept = choose_variable(runs_folder, "keras", "", ["dense/kernel"], "dense/kernel")
    assert kept == (no_update, no_update)


def test_comparing_offers_what_one_of_the_runs_records(runs_folder):
    options, value = choose_stream(runs_folder, ["ctr-async", "keras"], "", [], None)
    assert {"eval/auc", "train/accuracy"} <= set(options)
    assert value == "eval/auc"
    assert choose_stream(runs_folder, [], "", ["eval/auc"], "eval/auc") == ([], None)
    query = write_compare_query(["a", "b"], "eval/auc", "samples")
    assert query == "?run=a&run=b&stream=eval%2Fauc&against=samples"


def test_comparing_follows_all_its_runs(runs_folder):
    version, _, banner = follow_runs(runs_folder, 1, ["keras", "gone"], None, [])
    assert "There is no run named" in text_of(banner)
    keys = follow_runs(runs_folder, 1, ["keras"], None, [])[1]
    with pytest.raises(PreventUpdate):
        follow_runs(runs_folder, 2, ["keras", "gone"], version, keys)


def test_the_numbers_below_the_comparison(runs_folder):
    text = text_of(draw_table(runs_folder, ["ctr-async"], "eval/loss", "step", None))
    assert "eval/loss (nat)" in text
    assert '"0.7"' in text
    assert draw_table(runs_folder, ["gone"], "eval/loss", "step", None) is None


def test_the_banner_says_which_of_several_runs_is_which(runs_folder, tmp_path):
    text = text_of(banner(runs_folder, ["ctr-async", "ctr-sync", "gone"]))
    for shown in ('"ctr-async"', '"ctr-sync"', '"async"', '"sync"', "There is no run named 'gone'"):
        assert shown in text
    # The name stands in the selector already.
    assert '"ctr-async"' not in text_of(banner(runs_folder, ["ctr-async"]))
    assert "Choose a run" in text_of(banner(runs_folder, []))
    assert "no runs in this folder yet" in text_of(banner(tmp_path, []))


def test_runs_beyond_the_most_are_said(runs_folder):
    wanted = [f"r{i}" for i in range(MOST_RUNS + 2)]
    assert f"2 more runs are not shown: {MOST_RUNS} at most" in text_of(banner(runs_folder, wanted))


def test_the_totals_of_the_optimizers(runs_folder):
    text = text_of(draw_totals(runs_folder, ["ctr-async", "ctr-sync", "keras"], None))
    for cell in ("ctr-async", "worker-1", "Dropped (%)", "Mean wait (ms)", "180", "200 kB"):
        assert f'"{cell}"' in text
    assert "keras" not in text
    assert draw_totals(runs_folder, ["keras"], None) is None
    assert draw_totals(runs_folder, ["gone", "../outside"], None) is None


def test_the_address_of_the_optimizer_page_names_all_its_runs():
    assert write_optimizer_query(["a", "b"], "seconds") == "?run=a&run=b&against=seconds"
    assert write_optimizer_query(["a"], "step") == "?run=a"
    assert write_optimizer_query(None, "step") == ""


def test_the_newest_auc_values(runs_folder):
    assert len(draw_tiles(runs_folder, "ctr-async", None)) == 8
    assert draw_tiles(runs_folder, "../outside", None) == []


def test_arriving_builds_the_page_and_selecting_writes_the_address(runs_folder):
    page, links, shown, search = route(runs_folder, "/auc", "?run=keras", [], None)
    assert "auc-history" in text_of(page)
    assert "/weights?run=keras" in text_of(links)
    assert shown == {"pathname": "/auc", "search": "?run=keras", "title": "AUC · DeepInsight"}
    assert search is no_update
    with pytest.raises(PreventUpdate):
        route(runs_folder, "/auc", "?run=keras", ["?run=keras"], shown)
    page, _, shown, search = route(runs_folder, "/auc", "?run=keras", ["?run=killed"], shown)
    assert (page, search) == (no_update, "?run=killed")
    assert shown["search"] == "?run=killed"
    back = route(runs_folder, "/auc", "?run=keras", ["?run=killed"], shown)
    assert "auc-history" in text_of(back[0])


@pytest.mark.parametrize("search", ["", "?", None, "?run=../../etc&step=x&variable=%00", "?=&&"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.title)
def test_every_page_stands_whatever_the_address_says(runs_folder, page, search):
    assert route(runs_folder, page.path, search, [], None)[0] is not None


def test_a_page_without_a_run_is_sent_to_the_newest(client, tmp_path):
    response = client.get("/weights")
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/weights?run=")
    assert client.get("/weights?run=keras").status_code == 200
    assert create_app(tmp_path).server.test_client().get("/weights").status_code == 200


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (12345.6, "12,346"), (0.0, "0"), (np.nan, "NaN"), (np.inf, "infinite")],
)
def test_numbers_as_people_read_them(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (90000, "1 d 1 h"), (-3, "0 s")],
)
def test_lengths_of_time_as_people_read_them(seconds, text):
    assert duration(seconds) == text


def test_queries_survive_a_round_trip():
    values = {"run": ["a&b", "ü/=", "x y"], "step": "7"}
    parsed = parse_query(make_query(values))
    assert parsed == {"run": values["run"], "step": ["7"]}
    assert first(parsed, "missing", "default") == "default"
    assert parse_query(7) == {}


FIGURES = {
    "staleness-distribution": ["staleness-run.value", "staleness-version.data"],
    "staleness-throughput": ["staleness-run.value", "staleness-version.data"],
    "auc-history": ["auc-run.value", "auc-version.data"],
    "weights-gradients": ["weights-run.value", "weights-version.data"],
}
KEYS_OUT = ["../outside", "link-out", "half-link", "/etc", "..", "ctr-async/../../outside", 5, None]


@pytest.mark.parametrize("graph", FIGURES)
@pytest.mark.parametrize("key", KEYS_OUT, ids=repr)
def test_a_forged_key_reads_nothing_outside(client, ask, graph, key):
    inputs = [[name, value] for name, value in zip(FIGURES[graph], (key, None), strict=True)]
    response = ask(client, graph, inputs)
    assert response.status_code == 200
    figure = response.json["response"][graph]["figure"]
    assert figure["data"] == []
    assert "Traceback" not in response.text
    assert "sequential" not in response.text


@pytest.mark.parametrize("key", KEYS_OUT, ids=repr)
def test_a_forged_snapshot_reads_nothing_outside(client, ask, key):
    for variable in ("dense/kernel", "../../secret", None, {"a": 1}):
        snapshot = {"run": key, "variable": variable, "step": 0}
        inputs = [["weights-snapshot.data", snapshot], ["weights-colours.value", "run"]]
        response = ask(client, "weights-heatmap", inputs)
        assert response.status_code == 200
        assert response.json["response"]["weights-heatmap"]["figure"]["data"] == []


def test_forged_runs_of_the_optimizer_page_are_left_out(client, ask):
    inputs = [
        ["optimizer-runs.value", [*KEYS_OUT, "ctr-sync"]],
        ["optimizer-against.value", "nonsense"],
        ["optimizer-version.data", None],
    ]
    answer = ask(client, "optimizer-figure", inputs).json["response"]
    names = {trace["name"] for trace in answer["optimizer-figure"]["figure"]["data"]}
    assert names == {"worker-0", "worker-1"}
    inputs[0][1] = KEYS_OUT
    figure = ask(client, "optimizer-figure", inputs).json["response"]["optimizer-figure"]["figure"]
    assert figure["data"] == []
    assert "Choose one run" in figure["layout"]["annotations"][0]["text"]


def test_forged_runs_to_compare_are_left_out(client, ask):
    inputs = [
        ["compare-runs.value", ["../outside", "link-out", "keras"]],
        ["compare-stream.value", "train/loss"],
        ["compare-against.value", "step"],
        ["compare-version.data", None],
    ]
    response = ask(client, "compare-figure", inputs)
    traces = response.json["response"]["compare-figure"]["figure"]["data"]
    assert [trace["name"] for trace in traces] == ["keras"]


def test_any_process_can_answer_for_any_other(runs_folder, ask):
    answers = []
    for _ in range(2):
        client = create_app(runs_folder).server.test_client()
        inputs = [["auc-run.value", "ctr-async"], ["auc-version.data", None]]
        answers.append(ask(client, "auc-history", inputs).json)
    assert answers[0] == answers[1]


def test_two_apps_in_one_process_do_not_mix_their_folders(runs_folder, tmp_path, ask):
    here = create_app(runs_folder).server.test_client()
    create_app(tmp_path)
    inputs = [["auc-run.value", "ctr-async"], ["auc-version.data", None]]
    response = ask(here, "auc-history", inputs)
    assert response.json["response"]["auc-history"]["figure"]["data"]


def test_the_same_figure_with_more_rows_leaves_the_axes_ranges_to_the_page(client, ask):
    inputs = [["auc-run.value", "ctr-async"], ["auc-version.data", None]]
    whole = ask(client, "auc-history", inputs, "another").json["response"]
    revision = whole["auc-history-revision"]["data"]
    assert revision == "ctr-async:ctr-async/auc"
    assert whole["auc-history"]["figure"]["data"]
    again = ask(client, "auc-history", inputs, revision).json["response"]["auc-history"]["figure"]
    operations = {tuple(each["location"]): each["params"] for each in again["operations"]}
    assert operations["data",]["value"] == whole["auc-history"]["figure"]["data"]
    assert ("layout", "xaxis", "title") in operations
    assert not [place for place in operations if place[-1] in ("range", "autorange", "template")]


def test_a_run_of_the_same_name_elsewhere_is_another_revision(client, ask):
    revisions = {
        ask(client, "auc-train-loss", [["auc-run.value", key], ["auc-version.data", None]]).json[
            "response"
        ]["auc-train-loss-revision"]["data"]
        for key in ("ctr-async", "link-in", "keras")
    }
    assert len(revisions) == 3
    steps = (0, 100)
    snapshots = [{"run": "ctr-async", "variable": "fc1/kernel", "step": step} for step in steps]
    heatmaps = {
        ask(
            client,
            "weights-heatmap",
            [["weights-snapshot.data", snapshot], ["weights-colours.value", "run"]],
        ).json["response"]["weights-heatmap-revision"]["data"]
        for snapshot in snapshots
    }
    assert len(heatmaps) == 1


def test_an_empty_figure_has_no_revision(client, ask):
    inputs = [["auc-run.value", "gone"], ["auc-version.data", None]]
    assert ask(client, "auc-history", inputs).json["response"]["auc-history-revision"]["data"] == ""


def test_a_fault_of_ours_is_said_in_the_figure_and_logged(runs_folder, monkeypatch, caplog, ask):
    def fail(run):
        raise RuntimeError("a secret detail")

    name = "deepinsight.dashboard.pages.auc.callbacks.compute_auc_history_info"
    monkeypatch.setattr(name, fail)
    client = create_app(runs_folder).server.test_client()
    inputs = [["auc-run.value", "ctr-async"], ["auc-version.data", None]]
    response = ask(client, "auc-history", inputs)
    assert response.status_code == 200
    assert "cannot be read just now" in response.text
    assert "a secret detail" not in response.text
    assert "a secret detail" in caplog.text
