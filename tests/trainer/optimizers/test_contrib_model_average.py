"""Scripts for model averaging as in ``tf.contrib.opt``, with only the import changed."""

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.optimizers.averaging.model_average import (
    GLOBAL_VARIABLE_NAME,
    ModelAverageCustomGetter,
    ModelAverageOptimizer,
)

from .averaging_workers import SERVERS, start_cluster, together

v1 = tf.compat.v1
TIMEOUT_S = 100
RATE, INTERVAL = 0.25, 5
pytestmark = pytest.mark.timeout(240)

# As such scripts were written: everything of TensorFlow 1, no place of the worker, one train op.
SCRIPT = """
import json, sys, time

import tensorflow.compat.v1 as tf

# was: from tensorflow.contrib.opt import ModelAverageCustomGetter, ModelAverageOptimizer
from deepinsight.trainer.optimizers.averaging.model_average import (
    ModelAverageCustomGetter, ModelAverageOptimizer,
)

tf.disable_v2_behavior()
flags = json.loads(sys.argv[1])
cluster = tf.train.ClusterSpec(flags["cluster"])
job, task = flags["job"], flags["task"]
server = tf.train.Server(cluster, job_name=job, task_index=task)
if job == "ps":
    server.join()

worker_device = "/job:worker/task:%d/cpu:0" % task
is_chief = task == 0
ma_custom_getter = ModelAverageCustomGetter(worker_device)
setter = tf.train.replica_device_setter(
    worker_device=worker_device, ps_device="/job:ps/cpu:0", cluster=cluster
)
with tf.device(setter), tf.variable_scope("", custom_getter=ma_custom_getter):
    global_step = tf.Variable(0, name="global_step", trainable=False)
    hid_w = tf.get_variable(name="hid_w", initializer=tf.truncated_normal([4, 3], stddev=0.5))
    hid_b = tf.get_variable(name="hid_b", initializer=tf.zeros([3]))
with tf.device(worker_device):
    # The gradient is the same at every step, another one for each worker.
    loss = (task + 1) * (tf.reduce_sum(hid_w) - 2 * tf.reduce_sum(hid_b))
    opt = tf.train.GradientDescentOptimizer(flags["rate"])
    ma_opt = ModelAverageOptimizer(
        opt, num_worker=len(flags["cluster"]["worker"]), is_chief=is_chief,
        ma_custom_getter=ma_custom_getter, interval_steps=flags["interval"],
    )
    train_op = ma_opt.minimize(loss, global_step=global_step)
ma_hook = ma_opt.make_session_run_hook()
stop_hook = tf.train.StopAtStepHook(last_step=flags["rounds"])
config = tf.ConfigProto(device_filters=["/job:ps", worker_device])
with tf.train.MonitoredTrainingSession(
    master=server.target, is_chief=is_chief, hooks=[ma_hook, stop_hook], config=config,
    checkpoint_dir=flags.get("checkpoints") if is_chief else None, save_checkpoint_secs=None,
    save_checkpoint_steps=1,
) as sess:
    begin = sess.run([hid_w, hid_b])
    print("ready", flush=True)
    steps = 0
    while not sess.should_stop():
        sess.run(train_op)
        steps += 1
        if steps == flags.get("stall_after"):
            print("stalled", flush=True)
            time.sleep(1000)
    print(json.dumps({"steps": steps, "begin": [x.tolist() for x in begin]}))
print("done", flush=True)
"""


class Script:
    """A process that runs the script; what it prints is read meanwhile."""

    def __init__(self, folder, text, task, **flags):
        path = folder / f"script{task}.py"
        path.write_text(text)
        # TensorFlow takes seconds to import, which all processes can do at the same time.
        run = f"import runpy, tensorflow; input(); runpy.run_path({str(path)!r})"
        environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        self._errors = folder / f"worker{task}-{time.time_ns()}.err"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", run, json.dumps({"job": "worker", "task": task, **flags})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self._lines, self._new = [], threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            with self._new:
                self._lines.append(line.strip())
                self._new.notify_all()
        self._process.stdout.close()
        with self._new:
            self._lines.append("")
            self._new.notify_all()

    def go(self, word="ready"):
        """Let it begin, or go on, and wait until it has printed a line."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.wait_for(word)

    def wait_for(self, word):
        """Wait until it has printed a line."""
        with self._new:
            self._new.wait_for(lambda: {word, ""} & set(self._lines), TIMEOUT_S)
            assert word in self._lines, self._errors.read_text()[-4000:]
        return self

    def result(self):
        """Wait until its session is closed; what it printed then."""
        self.wait_for("done")
        return json.loads(self._lines[self._lines.index("done") - 1])

    def kill(self):
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(TIMEOUT_S)
        with suppress(BrokenPipeError):
            self._process.stdin.close()


class Run:
    """Two workers, each a process, their parameter server in this one."""

    def __init__(self, folder):
        self._folder, self._scripts = folder, []
        sockets = [socket.socket() for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()
        self._cluster = {"ps": addresses[:1], "worker": addresses[1:]}
        self._server = v1.train.Server(self._cluster, job_name="ps", task_index=0)
        SERVERS.append(self._server)

    def start(self, task, text=SCRIPT, **flags):
        """Start a process; it waits for `Script.go`."""
        flags = {"rate": RATE, "interval": INTERVAL, "cluster": self._cluster, **flags}
        self._scripts.append(Script(self._folder, text, task, **flags))
        return self._scripts[-1]

    def served(self):
        """The global values and the global step."""
        with tf.Graph().as_default():
            with tf.device("/job:ps/task:0"):
                copies = [
                    v1.get_variable(f"{GLOBAL_VARIABLE_NAME}/{name}", shape, use_resource=True)
                    for name, shape in (("hid_w", [4, 3]), ("hid_b", [3]))
                ]
                step = v1.get_variable("global_step", [], tf.int32, use_resource=False)
            config = v1.ConfigProto(device_filters=["/job:ps"])
            with v1.Session(self._server.target, config=config) as session:
                return session.run([*copies, step])

    def kill(self):
        for script in self._scripts:
            script.kill()


@contextmanager
def running(folder):
    """A run whose processes are gone at the end."""
    run = Run(folder)
    try:
        yield run
    finally:
        run.kill()


def expected_after(begin, speeds):
    """The global values after rounds in which the workers' mean gradient was as given."""
    way = RATE * INTERVAL * sum(speeds)
    return np.array(begin[0]) - way, np.array(begin[1]) + 2 * way


def check_served(run, begin, speeds):
    *found, step = run.served()
    assert step == len(speeds)
    for value, expected in zip(found, expected_after(begin, speeds), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


# Both begin to train when both are there: they wait for each other for a short time only.
PATIENT = (
    SCRIPT.replace(
        'interval_steps=flags["interval"],',
        'interval_steps=flags["interval"], patience=Patience(timeout_s=5.0),',
    )
    .replace(
        "tf.disable_v2_behavior()",
        "from deepinsight.trainer.cluster.members import Patience\ntf.disable_v2_behavior()",
    )
    .replace("    steps = 0\n", "    input()\n    steps = 0\n")
)


def test_a_killed_worker_is_left_behind(tmp_path):
    with running(tmp_path) as run:
        chief = run.start(0, PATIENT, rounds=4)
        other = run.start(1, PATIENT, rounds=4, stall_after=INTERVAL + 2)
        for script in (chief, other, chief):
            script.go()
        other.go("stalled").kill()
        result = chief.result()
        check_served(run, result["begin"], [1.5, 1, 1, 1])


def test_the_example_runs_with_only_the_import_changed(tmp_path):
    """Both train; the chief is killed, and comes back to its checkpoint."""
    checkpoints = str(tmp_path / "checkpoints")
    with running(tmp_path) as run:
        stall = 2 * INTERVAL + 1
        chief = run.start(0, rounds=5, checkpoints=checkpoints, stall_after=stall)
        other = run.start(1, rounds=5)
        back = run.start(0, rounds=5, checkpoints=checkpoints)
        chief.go()
        other.go()
        chief.wait_for("stalled")
        saved = tf.train.load_checkpoint(checkpoints)
        assert saved.get_tensor("global_step") == 2
        chief.kill()
        back.go()
        results = [other.result(), back.result()]
        assert results[1]["steps"] == 3 * INTERVAL
        begin, again = (result["begin"] for result in results)
        # The other one began at the chief's values, although each drew its own.
        for value, kept in zip(expected_after(begin, [1.5, 1.5]), again, strict=True):
            np.testing.assert_allclose(value, kept, rtol=1e-5, atol=1e-5)
        for value, copy in zip(again, ("hid_w", "hid_b"), strict=True):
            kept = saved.get_tensor(f"{GLOBAL_VARIABLE_NAME}/{copy}")
            np.testing.assert_array_equal(np.array(value, np.float32), kept)
        # What the other one had learnt in the broken round is in no mean.
        check_served(run, begin, [1.5] * 5)


def test_the_signatures_are_those_of_tensorflow_1_15():
    def names(function):
        parameters = inspect.signature(function).parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [(p.name, p.default) for p in parameters if p.kind in kinds and p.name != "self"]

    required = inspect.Parameter.empty
    assert names(ModelAverageCustomGetter.__init__) == [("worker_device", required)]
    assert names(ModelAverageOptimizer.__init__) == [
        ("opt", required),
        ("num_worker", required),
        ("is_chief", required),
        ("ma_custom_getter", required),
        ("interval_steps", 100),
        ("use_locking", True),
        ("name", "ModelAverageOptimizer"),
    ]
    assert names(ModelAverageOptimizer.apply_gradients) == [
        ("grads_and_vars", required),
        ("global_step", None),
        ("name", None),
    ]
    assert names(ModelAverageOptimizer.get_init_op) == []
    assert names(ModelAverageOptimizer.make_session_run_hook) == []


def test_a_session_that_takes_every_worker_for_the_chief():
    """As in the tests of 1.15: each session initialises all variables of its graph."""
    _, targets = start_cluster(1, 2)
    sessions, train_ops, fetched = [], [], []
    for index in (0, 1):
        graph, device = tf.Graph(), f"/job:worker/task:{index}/cpu:0"
        with graph.as_default():
            getter = ModelAverageCustomGetter(worker_device=device)
            setter = v1.train.replica_device_setter(
                worker_device=device, ps_device="/job:ps/task:0/cpu:0", ps_tasks=1
            )
            with v1.variable_scope("", custom_getter=getter), v1.device(setter):
                step = v1.Variable(0, name="global_step", trainable=False)
                pair = [
                    v1.get_variable(initializer=0.0, name="v0"),
                    v1.get_variable(initializer=1.0, name="v1"),
                ]
            with tf.device(f"/job:worker/task:{index}"):
                optimizer = ModelAverageOptimizer(
                    opt=v1.train.GradientDescentOptimizer(1.0),
                    num_worker=2,
                    ma_custom_getter=getter,
                    is_chief=index == 0,
                    interval_steps=2,
                )
                gradient = tf.constant(-1.0 - index)
                train_ops.append([optimizer.apply_gradients([[gradient, v] for v in pair], step)])
            hook = optimizer.make_session_run_hook()
            sessions.append(v1.train.MonitoredTrainingSession(targets[index], hooks=[hook]))
        copies = [getter._local_2_global[v] for v in pair]  # as those tests looked at them
        assert [c.op.name for c in copies] == [f"{GLOBAL_VARIABLE_NAME}/v{i}" for i in (0, 1)]
        fetched.append([*pair, *copies, step])

    def values():
        return [float(value) for value in sessions[0].run(fetched[0])]

    assert values() == [0, 1, 0, 1, 0]
    for session, train_op in zip(sessions, train_ops, strict=True):
        session.run(train_op)
    assert values() == [1, 2, 0, 1, 0]
    together(*(lambda i=i: sessions[i].run(train_ops[i]) for i in (0, 1)))
    assert values() == [3, 4, 3, 4, 1]
    sessions[0].run(train_ops[0])
    assert values() == [4, 5, 3, 4, 1]
    for session in reversed(sessions):
        session.close()
