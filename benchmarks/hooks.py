"""What recording costs: steps/s with a hook ÷ steps/s without, in a v1 session and in Keras fit.

    python -m benchmarks.hooks [--quick]

The net is a dense CTR tower 1130-256-128-64-32-1 (332,801 parameters), Adam, batch 100, synthetic
data; the session's loop reads the loss at every step, as loops do (``…_not_fetched``: it does not).
Both variants of a pair live in one process and take turns of 100 steps (an epoch in Keras), in
alternating order, so that drifts of the machine cancel; a pair compares the medians of several
turns, each of which holds one recording. What the hook still has to do after a turn is awaited
inside it. Reported are the median and the quartiles of the pairs' ratios. The last line is
``RESULT`` and a flat JSON object.
"""

import argparse
import itertools
import json
import logging
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import deepinsight as di

LAYERS = (1130, 256, 128, 64, 32, 1)
BATCH = 100
RECORD_EVERY = 100


class SessionVariant:
    """A graph and a monitored session of its own, with or without a hook."""

    def __init__(self, make_hooks: Callable[..., list[Any]], fetch_loss: bool = True) -> None:
        with tf.Graph().as_default():
            tf.compat.v1.set_random_seed(1)
            loss, variables = _dense_loss()
            step = tf.compat.v1.train.get_or_create_global_step()
            optimizer = tf.compat.v1.train.AdamOptimizer(1e-3)
            pairs = optimizer.compute_gradients(loss, variables)
            train_op = optimizer.apply_gradients(pairs, global_step=step)
            self.fetches = [train_op, loss] if fetch_loss else train_op
            self.hooks = make_hooks(loss, pairs)
            self.session = tf.compat.v1.train.SingularMonitoredSession(self.hooks)
        self.turn(RECORD_EVERY // 2)  # from now on what is recorded lies in the middle of a turn

    def turn(self, steps: int = RECORD_EVERY) -> float:
        """Seconds for so many steps."""
        run, fetches = self.session.run, self.fetches
        started = time.perf_counter()
        for _ in range(steps):
            run(fetches)
        for hook in self.hooks:
            if isinstance(hook, di.TraceHook):
                hook.drain()
        return time.perf_counter() - started


def _dense_loss() -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(0)
    x = tf.compat.v1.get_variable(
        "x", initializer=rng.normal(size=(BATCH, LAYERS[0])).astype("f4"), trainable=False
    )
    y = tf.constant((rng.random((BATCH, 1)) < 0.5).astype("f4"))
    variables, h = [], tf.convert_to_tensor(x)
    for i, (rows, columns) in enumerate(itertools.pairwise(LAYERS), 1):
        w = tf.compat.v1.get_variable(f"fc{i}/kernel", [rows, columns], use_resource=True)
        b = tf.compat.v1.get_variable(
            f"fc{i}/bias", [columns], use_resource=True, initializer=tf.zeros_initializer()
        )
        variables += [w, b]
        h = tf.matmul(h, w) + b
        h = tf.nn.relu(h) if i < len(LAYERS) - 1 else h
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=h))
    return loss, variables


def _session_hooks(folder: Path) -> dict[str, Callable[[Any, list[Any]], list[Any]]]:
    def scalars(loss: Any, _: list[Any]) -> list[Any]:
        di.trace_tensor("train/loss", loss, unit="nat")
        return [di.TraceHook(tempfile.mkdtemp(dir=folder), [di.probes.Scalars()])]

    def weights_gradients(*_: Any) -> list[Any]:
        return [di.TraceHook(folder / "s2", every_n_steps=RECORD_EVERY, batch_size=BATCH)]

    def summary_saver(_: Any, pairs: list[Any]) -> list[Any]:
        v1 = tf.compat.v1
        for gradient, variable in pairs:
            v1.summary.histogram(f"weights/{variable.op.name}", variable)
            v1.summary.histogram(f"gradients/{variable.op.name}", gradient)
        return [
            v1.train.SummarySaverHook(
                save_steps=RECORD_EVERY,
                output_dir=str(folder / "s3"),
                summary_op=v1.summary.merge_all(),
            )
        ]

    def budget(*_: Any) -> list[Any]:
        probes = [di.probes.Weights(), di.probes.Gradients()]
        return [di.TraceHook(folder / "s4", probes, every_n_steps=1, overhead_budget=0.02)]

    return {
        "session_scalars": scalars,
        "session_scalars_not_fetched": scalars,
        "session_weights_gradients_100": weights_gradients,
        "session_summary_saver_100": summary_saver,
        "session_every_step_budget_2_percent": budget,
    }


class _Turns:
    """Hands turns to two fits that run in two threads, one epoch at a time: 0 1 1 0 0 1 1 0 ..."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turn, self._ended = 0, False

    def wait(self, player: int) -> None:
        """Until it is this player's turn."""
        with self._changed:
            mine = lambda: self._ended or ((self._turn + 1) // 2) % 2 == player  # noqa: E731
            self._changed.wait_for(mine)

    def end(self) -> None:
        """One player has finished or failed: nobody waits any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def done(self) -> None:
        """The next turn begins."""
        with self._changed:
            self._turn += 1
            self._changed.notify_all()


class _Begin(keras.callbacks.Callback):
    """First of the callbacks: waits for its turn and starts the clock."""

    def __init__(self, turns: _Turns, player: int) -> None:
        super().__init__()
        self.turns, self.player, self.seconds = turns, player, []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.turns.wait(self.player)
        self.started = time.perf_counter()


class _End(keras.callbacks.Callback):
    """Last of the callbacks: stops the clock and passes the turn on."""

    def __init__(self, begin: _Begin, callbacks: list[Any]) -> None:
        super().__init__()
        self.begin, self.traces = begin, [c for c in callbacks if isinstance(c, di.TraceCallback)]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for trace in self.traces:
            trace.drain()
        self.begin.seconds.append(time.perf_counter() - self.begin.started)
        self.begin.turns.done()


def _fit(turns: _Turns, player: int, epochs: int, callbacks: list[Any]) -> list[float]:
    """Seconds of each epoch but the first, which traces and compiles."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORD_EVERY * BATCH, LAYERS[0])).astype("f4")
    y = (rng.random((len(x), 1)) < 0.5).astype("f4")
    layers: list[Any] = [keras.Input((LAYERS[0],))]
    for i, units in enumerate(LAYERS[1:], 1):
        activation = "relu" if units > 1 else "sigmoid"
        layers.append(keras.layers.Dense(units, activation=activation, name=f"fc{i}"))
    model = keras.Sequential(layers)
    model.compile("adam", "binary_crossentropy")
    begin = _Begin(turns, player)
    end = _End(begin, callbacks)
    shared = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    try:
        model.fit(x, y, epochs=epochs, callbacks=[begin, *callbacks, end], **shared)
    finally:
        turns.end()
    return begin.seconds[1:]


def _keras_pairs(callbacks: list[Any], pairs: int, turns_per_pair: int) -> list[float]:
    turns = _Turns()
    epochs = 1 + pairs * turns_per_pair
    with ThreadPoolExecutor(2) as pool:
        with_hook = pool.submit(_fit, turns, 1, epochs, callbacks)
        without = pool.submit(_fit, turns, 0, epochs, [])
        return _ratios(without.result(), with_hook.result(), turns_per_pair)


def _keras_callbacks(folder: Path) -> dict[str, list[Any]]:
    scalars = di.TraceCallback(folder / "k1", [di.probes.Scalars()])
    probes = [di.probes.Weights(), di.probes.Gradients(), di.probes.Throughput()]
    weights_gradients = di.TraceCallback(folder / "k2", probes, every_n_steps=RECORD_EVERY)
    tensorboard = keras.callbacks.TensorBoard(str(folder / "k3"), histogram_freq=1)
    return {
        "keras_scalars": [scalars],
        "keras_weights_gradients_100": [weights_gradients],
        "keras_tensorboard_100": [tensorboard],
    }


def _session_pairs(
    base: SessionVariant, variant: SessionVariant, pairs: int, turns_per_pair: int
) -> list[float]:
    without, with_hook = [], []
    for i in range(pairs * turns_per_pair):
        if i % 2:
            with_hook.append(variant.turn())
            without.append(base.turn())
        else:
            without.append(base.turn())
            with_hook.append(variant.turn())
    return _ratios(without, with_hook, turns_per_pair)


def _ratios(without: list[float], with_hook: list[float], per_pair: int) -> list[float]:
    """Steps/s with ÷ steps/s without, per pair of so many turns."""
    base = np.median(np.reshape(without, (-1, per_pair)), axis=1)
    return list(base / np.median(np.reshape(with_hook, (-1, per_pair)), axis=1))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a rough look in about a minute")
    parser.add_argument("--only", default="", help="only variants whose key holds this")
    arguments = parser.parse_args(argv)
    pairs, turns = (3, 4) if arguments.quick else (9, 8)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    results: dict[str, float] = {}
    print(f"{'variant':38} {'ratio':>7}  quartiles   ({pairs} pairs of {turns} turns of 100 steps)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for key, make_hooks in _session_hooks(folder).items():
            if arguments.only in key:
                fetch_loss = not key.endswith("_not_fetched")
                base = SessionVariant(lambda *_: [], fetch_loss)
                variant = SessionVariant(make_hooks, fetch_loss)
                _report(results, key, _session_pairs(base, variant, pairs, turns))
                results["session_steps_per_s"] = RECORD_EVERY / base.turn()
                variant.session.close()
                base.session.close()
        for key, callbacks in _keras_callbacks(folder).items():
            if key.startswith("keras_tensorboard") and not find_spec("tensorboard"):
                print(f"{key:38} skipped: pip install tensorboard")
            elif arguments.only in key:
                _report(results, key, _keras_pairs(callbacks, pairs, turns))
    print("RESULT " + json.dumps({k: round(v, 4) for k, v in results.items()}))
    return 0


def _report(results: dict[str, float], key: str, ratios: list[float]) -> None:
    low, median, high = statistics.quantiles(ratios, n=4)
    results[key], results[f"{key}_iqr"] = median, high - low
    print(f"{key:38} {median:7.3f}  {low:.3f} to {high:.3f}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
