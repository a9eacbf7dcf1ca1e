"""How a worker parts from the others."""

import threading
from types import SimpleNamespace

import pytest

from deepinsight.trainer.options import Options
from deepinsight.trainer.worker import Worker


class Parting:
    """A worker at its end, with what it would talk to, and what it did."""

    def __init__(self, tmp_path, *, pushes=1):
        self.termination = SimpleNamespace(requested=threading.Event(), failed=False, failure=None)
        self.finished, self.saved = [], []
        self.worker = Worker(
            Options(run_dir=str(tmp_path)), None, None, report=None,
            termination=self.termination, launched_s=0.0, import_s=0.0,
        )  # fmt: skip
        self.worker._pushes = pushes

    def part(self, exchanges=None):
        session = SimpleNamespace(run_step_fn=lambda _: SimpleNamespace(run=lambda value: value))
        push = SimpleNamespace(leave_op=None)
        graph = SimpleNamespace(push=push, global_step=None, progress=exchanges, gradients=[1])
        chores = SimpleNamespace(finish=lambda _, interrupted: self.finished.append(interrupted))
        self.worker._part(session, graph, None, chores)
        return self.worker._done_event(graph, "steps")


@pytest.mark.parametrize("told", [True, False])
def test_a_chief_that_is_told_to_end_while_it_waits_takes_no_time_to_evaluate(tmp_path, told):
    parting = Parting(tmp_path)

    def wait(*_):
        if told:
            parting.termination.requested.set()

    parting.worker._attendance = SimpleNamespace(wait_for_others=wait)
    parting.part()
    assert parting.finished == [told]


@pytest.mark.parametrize("pushes", [0, 1])
def test_a_worker_that_made_no_step_has_nothing_of_its_own_to_save(tmp_path, pushes):
    parting = Parting(tmp_path, pushes=pushes)
    parting.worker._own = SimpleNamespace(save=lambda _, step: parting.saved.append(step))
    parting.part()
    assert len(parting.saved) == pushes


@pytest.mark.parametrize("exchanges", [None, 0, 7])
def test_the_chief_tells_how_often_workers_have_exchanged(tmp_path, exchanges):
    assert Parting(tmp_path).part(exchanges)["exchanges"] == exchanges
