"""A worker's own state on disk: complete saves only, the nearest is read, two are kept."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.cluster.own_state import OwnState, OwnStateError, OwnStateHook

v1 = tf.compat.v1


class Worker:
    """A graph with two variables of a worker's own."""

    def __init__(self, directory, worker=1, size=3):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.variables = [
                v1.get_variable(name, shape, tf.float32, v1.zeros_initializer(), use_resource=True)
                for name, shape in (("u", [size]), ("v", []))
            ]
            self._fill = v1.placeholder(tf.float32, [])
            self._assign = [v.assign(tf.fill(v.shape, self._fill)) for v in self.variables]
            self.state = OwnState(self.variables, directory, worker)
            init = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph)
        self.session.run(init)

    def save(self, step):
        """Save all variables with the step as their value."""
        self.session.run(self._assign, {self._fill: step})
        return self.state.save(self.session, step)

    def restore(self, step):
        """Restore; what was found and what all variables are then."""
        found = self.state.restore(self.session, step)
        u, v = self.session.run(self.variables)
        np.testing.assert_array_equal(u, np.full(u.shape, v))
        return found, float(v)


@pytest.mark.parametrize(
    ("step", "nearest"), [(1, 100), (100, 100), (149, 100), (150, 100), (151, 200), (999, 200)]
)
def test_the_nearest_save_is_read(tmp_path, step, nearest, caplog):
    saving = Worker(tmp_path)
    saving.save(100)
    saving.save(200)
    with caplog.at_level(logging.WARNING):
        assert Worker(tmp_path).restore(step) == (nearest, nearest)
    expected = [] if step == nearest else [f"own state of step {nearest}, while the model is at"]
    assert len(caplog.messages) == len(expected)
    assert all(words in message for words, message in zip(expected, caplog.messages, strict=True))


def test_the_last_two_saves_are_kept_also_after_a_step_back(tmp_path):
    worker = Worker(tmp_path)
    for step in (100, 200, 300, 250):
        path = worker.save(step)
    assert path.parent == tmp_path / "worker-1"
    left = sorted(p.name for p in path.parent.iterdir())
    assert left == ["00000002-step-300", "00000003-step-250"]
    worker.save(250)
    left = sorted(p.name for p in path.parent.iterdir())
    assert left == ["00000002-step-300", "00000004-step-250"]
    assert Worker(tmp_path).restore(250) == (250, 250)


def test_a_save_that_was_interrupted_is_none(tmp_path):
    worker = Worker(tmp_path)
    complete = worker.save(100)
    unfinished = complete.parent / "unfinished"
    unfinished.mkdir()
    for part in complete.iterdir():
        (unfinished / part.name).write_bytes(part.read_bytes()[:5])
    assert Worker(tmp_path).restore(200) == (100, 100)
    worker.save(200)
    assert not unfinished.exists()
    assert Worker(tmp_path).restore(200) == (200, 200)


def test_workers_do_not_share(tmp_path, caplog):
    Worker(tmp_path, worker=0).save(100)
    with caplog.at_level(logging.WARNING):
        assert Worker(tmp_path, worker=2).restore(100) == (None, 0)
        assert not caplog.messages  # it comes for the first time
        assert Worker(tmp_path, worker=2).restore(100) == (None, 0)
    (message,) = caplog.messages
    assert f"Worker 2 has no own state in {tmp_path}/worker-2" in message
    assert "how much that was is unknown" in message


def test_at_the_first_step_nothing_waits(tmp_path, caplog):
    Worker(tmp_path).save(100)
    with caplog.at_level(logging.WARNING):
        assert Worker(tmp_path).restore(0) == (None, 0)
    assert not caplog.messages


def test_a_save_that_does_not_fit_is_named(tmp_path):
    path = Worker(tmp_path).save(100)
    other = Worker(tmp_path, size=4)
    match = r"must hold .* 'u' is float32 \[3\] there and float32 \[4\] here; .* or remove "
    with pytest.raises(OwnStateError, match=rf"{path.name} {match}{path.parent} to begin"):
        other.restore(100)
    assert [v.shape for v in other.session.run(other.variables)] == [(4,), ()]
    with tf.Graph().as_default():
        w = v1.get_variable("w", [], use_resource=True)
        state = OwnState([w], tmp_path, 1)
        with (
            v1.Session() as session,
            pytest.raises(OwnStateError, match=r"'u' is float32 \[3\] there and not here"),
        ):
            state.restore(session, 100)
    (path / "state.index").write_bytes(b"no index")
    with pytest.raises(OwnStateError, match=rf"{path.name} must hold .* or remove"):
        Worker(tmp_path).restore(100)


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"at least one variable\. Received: none"):
        OwnState([], tmp_path, 0)
    with tf.Graph().as_default():
        steps = v1.get_variable("steps", [], tf.int64, use_resource=True)
        with pytest.raises(ValueError, match=r">= 0\. Received: worker=-1"):
            OwnState([steps], tmp_path, -1)
        for every in (0, -3):
            with pytest.raises(ValueError, match=rf"or None\. Received: every_n_steps={every}\."):
                OwnStateHook([steps], tmp_path, 0, steps=steps, every_n_steps=every)
        hook = OwnStateHook([steps], tmp_path, 0, steps=steps, every_n_steps=None)
        with pytest.raises(RuntimeError, match=r"must have a global step.* Received: none"):
            hook.begin()
