import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinsight.dashboard.errors import UnknownRunError
from deepinsight.dashboard.runs import opened, resolve_run, run_keys, run_version
from deepinsight.traces import TraceWriter

KEYS_OUT = [
    "..",
    "../outside",
    "ctr-async/../../outside",
    "ctr-async/..",
    "./ctr-async",
    "ctr-async/",
    "/etc",
    "/",
    "",
    "//",
    "link-out",
    "link-out/main",
    "half-link",
    "ctr-async/worker-0",
    "not-a-run",
    "..\\outside",
    "ctr-async\0",
    "%2e%2e/outside",
    "a" * 5000,
    None,
    7,
    ["ctr-async"],
    {"run": "ctr-async"},
]


@pytest.mark.parametrize("key", KEYS_OUT, ids=repr)
def test_what_leads_out_of_the_folder_or_to_nothing_is_refused(runs_folder, key):
    with pytest.raises(UnknownRunError, match=r"no run named|No run is selected"):
        resolve_run(runs_folder, key)


def test_an_absolute_path_to_a_run_is_refused_even_inside(runs_folder):
    with pytest.raises(UnknownRunError, match="There is no run named"):
        resolve_run(runs_folder, str(runs_folder / "ctr-async"))


@pytest.mark.parametrize("key", ["ctr-async", "experiments/diverged", "link-in"])
def test_runs_below_the_folder_are_found(runs_folder, key):
    with opened(runs_folder, key) as run:
        assert run.config["model"] == "wide-deep"


def test_the_folder_itself_can_be_the_run(runs_folder):
    assert resolve_run(runs_folder / "keras", ".") == (runs_folder / "keras").resolve()
    assert run_keys(runs_folder / "keras") == ["."]


def test_the_runs_folder_may_be_a_link_itself(runs_folder, tmp_path):
    os.symlink(runs_folder, tmp_path / "runs")
    assert resolve_run(tmp_path / "runs", "keras") == (runs_folder / "keras").resolve()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(["..", ".", "", "/", "ctr-async", "experiments", "link-out", "outside"]),
        max_size=6,
    ).map("/".join)
    | st.text(max_size=20)
)
def test_no_key_leads_out_of_the_folder(runs_folder, key):
    try:
        path = resolve_run(runs_folder, key)
    except UnknownRunError:
        return
    assert path.is_relative_to(runs_folder.resolve())
    assert (path / "run.json").is_file()


def test_the_list_holds_what_can_be_opened_and_nothing_else(runs_folder):
    keys = run_keys(runs_folder)
    assert {"ctr-async", "experiments/diverged", "killed", "broken-json"} <= set(keys)
    assert not {"link-out", "half-link", "not-a-run", "../outside"} & set(keys)


def test_the_newest_run_comes_first(tmp_path):
    for age, name in enumerate(("new", "old")):
        TraceWriter(tmp_path / name, "main").close()
        os.utime(tmp_path / name / "run.json", (time.time() - 100 * age,) * 2)
    assert run_keys(tmp_path) == ["new", "old"]


def test_a_folder_that_is_not_there_has_no_runs(tmp_path):
    assert run_keys(tmp_path / "later") == []


def test_the_version_changes_with_rows_and_status_and_not_without(tmp_path):
    with TraceWriter(tmp_path / "r", "main") as writer:
        writer.record("loss", 1.0, step=0)
        writer.flush()
        first = run_version(tmp_path, "r")
        assert run_version(tmp_path, "r") == first
        writer.record("loss", 1.0, step=1)
        writer.flush()
        second = run_version(tmp_path, "r")
    assert len({first, second, run_version(tmp_path, "r")}) == 3
