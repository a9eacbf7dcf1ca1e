"""The last words of a run."""

import io

from deepinsight.trainer.progress import Display, count, summary

DONE = {
    "kind": "done", "process": "worker-0", "reason": "steps", "pushes": 70, "samples": 6930,
    "first_step": 1, "last_step": 100, "first_time_s": 0.0, "last_time_s": 9.9,
    "staleness_sum": 35, "dropped": None,
}  # fmt: skip


def evaluation(step, *, loss=0.5, last=False):
    return {
        "kind": "eval", "step": step, "loss": loss, "auc": 0.7, "train_loss": 0.4,
        "train_auc": 0.8, "last": last,
    }  # fmt: skip


def words(*events, **settings):
    out = io.StringIO()
    display = Display(100, out)
    for event in events:
        display(event)
    return out.getvalue(), summary(display, "runs/x", **settings)


def test_the_last_evaluation_is_shown_once():
    shown, last = words(evaluation(50), evaluation(100, last=True), DONE)
    assert "step 50  eval loss" in shown
    assert "step 100" not in shown
    assert last[0].startswith("at the end: step 100  eval loss 0.5000 auc 0.7000")
    shown, last = words(evaluation(100), DONE)
    assert "step 100  eval loss" in shown
    assert not any("step 100" in line for line in last)


def test_figures_of_one_worker_are_not_given_out_as_the_run_s():
    line = "10 steps/s (700 samples/s), mean staleness 0.50 updates over 70 pushes"
    assert line in words(DONE)[1]
    alone = words(DONE, alone=True)[1]
    assert f"{line} of this worker; the other workers' figures are in the trace" in alone


def test_a_worker_that_came_too_late_for_a_step_counts_in_no_rate():
    late = {
        **DONE, "process": "worker-1", "pushes": 0, "samples": 0, "first_step": 0, "last_step": 0,
        "first_time_s": 0.0, "last_time_s": 0.0, "staleness_sum": None,
    }  # fmt: skip
    first = {**DONE, "first_time_s": 1e9, "last_time_s": 1e9 + 9.9}
    line = "10 steps/s (700 samples/s), mean staleness 0.50 updates over 70 pushes"
    assert line in words(first, late)[1]


def test_a_loss_that_is_no_number_is_warned_of():
    warned = [any("WARNING: the loss" in line for line in words(*events)[1]) for events in (
        [DONE],
        [evaluation(100)],
        [evaluation(100, loss=float("nan"))],
        [{"kind": "step", "step": 7, "loss": float("inf")}],
    )]  # fmt: skip
    assert warned == [False, False, True, True]


def test_a_worker_that_ended_early_is_named():
    assert "data ran out on worker-0" in words({**DONE, "reason": "data"})[1]
    assert "told to end early: worker-0" in words({**DONE, "reason": "interrupted"})[1]


def test_a_lost_worker_is_told_once():
    lost = {"kind": "lost", "process": "worker-1", "how": "was killed by SIGKILL"}
    shown, last = words(lost, {**lost, "how": "does not answer any more"}, DONE)
    assert shown.count("worker-1") == 1
    assert "worker-1 was killed by SIGKILL; the others go on without it" in shown
    assert "lost on the way: worker-1" in last


def test_a_worker_that_is_done_is_not_lost():
    lost = {"kind": "lost", "process": "worker-0", "how": "does not answer any more"}
    assert "worker-0" not in words(DONE, lost)[0]


def test_gradients_that_are_never_stale_have_no_staleness():
    assert "10 steps/s (700 samples/s)" in words({**DONE, "staleness_sum": None})[1]


def test_a_shared_model_that_nobody_trained_is_warned_of():
    warned = [
        any("WARNING: the workers have not exchanged" in line for line in words(event)[1])
        for event in (DONE, {**DONE, "exchanges": None}, {**DONE, "exchanges": 0},
                      {**DONE, "exchanges": 3})
    ]  # fmt: skip
    assert warned == [False, False, True, False]


def test_nouns_agree_with_their_number():
    assert [count(n, "worker") for n in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
