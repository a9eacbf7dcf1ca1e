"""Ten-line scripts, as a user's first ones, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

import deepinsight as di

SESSION = """
import tensorflow.compat.v1 as tf
import deepinsight as di

tf.disable_eager_execution()
x, y = tf.random.normal([32, 10]), tf.cast(tf.random.uniform([32, 1]) < 0.5, tf.float32)
loss = tf.losses.sigmoid_cross_entropy(y, x @ tf.get_variable("fc1/kernel", [10, 1]))
train_op = tf.train.AdamOptimizer().minimize(loss, tf.train.get_or_create_global_step())
di.trace_tensor("train/loss", loss, unit="nat")
hooks = [di.TraceHook("runs/mine"), tf.train.StopAtStepHook(last_step=500)]
with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
    while not session.should_stop():
        session.run(train_op)
"""

KERAS = """
import keras
import numpy as np
import deepinsight as di

x, y = np.random.rand(6400, 10), np.random.randint(0, 2, 6400)
model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid", name="fc1")])
model.compile("adam", "binary_crossentropy", metrics=["auc"])
model.fit(x, y, epochs=3, validation_split=0.2, callbacks=[di.TraceCallback("runs/mine")])
"""

OWN_LOOP = """
import numpy as np
import deepinsight as di

x, w, y = np.random.rand(100, 3), np.zeros(3), np.random.rand(100)
with di.Recorder("runs/mine", every_n_steps=10) as rec:
    for step in range(1, 101):
        gradient = x.T @ (x @ w - y) / 100
        w = w - 0.1 * gradient
        rec.record("train/loss", np.mean((x @ w - y) ** 2), step=step)
        rec.after_step(step, variables={"w": w}, gradients={"w": gradient}, samples=100)
import sys
assert "tensorflow" not in sys.modules
"""


def run_script(text: str, folder: Path) -> di.Run:
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:deepinsight", "-c", text],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    run = di.open_run(folder / "runs/mine")
    assert run.status == "finished"
    assert run.warnings == ()
    return run


@pytest.mark.parametrize(
    ("text", "last_step", "names"),
    [
        (SESSION, 500, ["train/loss", "gradients/fc1/kernel/norm"]),
        (KERAS, 480, ["train/loss", "train/auc", "eval/auc", "gradients/fc1/kernel/norm"]),
        (OWN_LOOP, 100, ["train/loss", "gradients/w/norm"]),
    ],
    ids=["session", "keras", "own loop"],
)
def test_script_leaves_a_trace(text: str, last_step: int, names: list[str], tmp_path: Path) -> None:
    run = run_script(text, tmp_path)
    for name in [*names, "throughput/steps_per_second", "recorder/overhead"]:
        assert name in run.stream_names()
    assert int(run.steps("train/loss")[-1]) == last_step
    assert any(n.startswith("weights/") and n.endswith("/tiles") for n in run.stream_names())
    assert "recorder/probe_failures" not in run.stream_names()
