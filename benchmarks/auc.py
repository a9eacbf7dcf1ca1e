"""The live AUC beside the exact value and beside ``keras.metrics.AUC``: error and cost.

``python -m benchmarks.auc`` prints two tables and, as its last line, ``RESULT `` and a flat JSON
object. ``--quick`` runs a tenth of the predictions and one seed.

Errors are absolute, against the AUC by sorting, ties counting half, the worst of all seeds.
Every metric is compared with the exact value of the scores that it was given: Keras gets float32
probabilities, so for "saturated" its loss to saturation itself is not held against it.

Costs are per update of 1,024 predictions, of blocks of 64 updates, which include all work that is
put off; the contenders take turns, so that a busy machine hits all of them alike.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepinsight.diagnostics import CumulativeAUC, DecayedAUC, WindowedAUC

BATCH = 1024
HALF_LIFE = 200
THRESHOLDS = 200  # the default of keras.metrics.AUC


class Sample(NamedTuple):
    """Labels and scores, ``[n]``; and whether the scores are logits."""

    labels: NDArray[np.bool_]
    scores: NDArray[np.floating]
    from_logits: bool


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def balanced(rng: np.random.Generator, n: int) -> Sample:
    chance = sigmoid(rng.normal(0.0, 1.5, n))
    return Sample(rng.random(n) < chance, chance.astype(np.float32), False)


def ctr_3_percent(rng: np.random.Generator, n: int) -> Sample:
    chance = sigmoid(rng.normal(-3.9, 1.0, n))
    return Sample(rng.random(n) < chance, chance.astype(np.float32), False)


def ctr_01_percent(rng: np.random.Generator, n: int) -> Sample:
    chance = sigmoid(rng.normal(-7.6, 1.2, n))
    return Sample(rng.random(n) < chance, chance.astype(np.float32), False)


def collapsed(rng: np.random.Generator, n: int) -> Sample:
    """Scores in 0.02 +- 0.0001 that still rank: their order carries all the information."""
    rank = rng.uniform(-1.0, 1.0, n)
    labels = rng.random(n) < 0.02 * np.exp(rank)
    return Sample(labels, (0.02 + 1e-4 * rank).astype(np.float32), False)


def saturated(rng: np.random.Generator, n: int) -> Sample:
    """Logits so large that most probabilities are 0 or 1 in float32."""
    logits = rng.normal(0.0, 40.0, n)
    return Sample(rng.random(n) < sigmoid(logits / 20.0), logits.astype(np.float32), True)


def saturated_probabilities(rng: np.random.Generator, n: int) -> Sample:
    labels, logits, _ = saturated(rng, n)
    return Sample(labels, sigmoid(logits.astype(np.float64)).astype(np.float32), False)


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int], Sample]] = {
    "balanced": balanced,
    "ctr_3_percent": ctr_3_percent,
    "ctr_01_percent": ctr_01_percent,
    "collapsed": collapsed,
    "saturated": saturated,
    "saturated_probabilities": saturated_probabilities,
}


def exact_auc(sample: Sample, weights: NDArray[np.float64]) -> float:
    """Return the weighted AUC by sorting, ties counting half."""
    order = np.argsort(sample.scores, kind="stable")
    scores, positive = sample.scores[order], sample.labels[order]
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    positives = np.diff(np.cumsum(weights[order] * positive)[last], prepend=0.0)
    negatives = np.diff(np.cumsum(weights[order] * ~positive)[last], prepend=0.0)
    below = np.cumsum(negatives) - 0.5 * negatives
    return float(positives @ below / (positives.sum() * negatives.sum()))


def feed(metric: DecayedAUC | WindowedAUC, sample: Sample) -> float:
    """Give a metric the sample in batches and return its result."""
    for at, start in enumerate(range(0, sample.labels.size, BATCH)):
        end = start + BATCH
        metric.update(sample.labels[start:end], sample.scores[start:end], at)
    return metric.result()


class Errors(NamedTuple):
    """Worst absolute errors of one distribution."""

    cumulative: float
    decayed: float
    windowed: float
    keras: float


def measure_errors(name: str, seed: int, n: int) -> Errors:
    """Feed all metrics one sample and compare each with its exact value."""
    import keras

    sample = DISTRIBUTIONS[name](np.random.default_rng(seed), n)
    logits = sample.from_logits
    steps = np.arange(n) // BATCH
    plain = exact_auc(sample, np.ones(n))
    window = 32 * max(1, int(steps[-1]) // 64)
    slice_length = window // 32
    recent = steps // slice_length > steps[-1] // slice_length - 32
    shown = sample
    if logits:
        chance = sigmoid(sample.scores.astype(np.float64)).astype(np.float32)
        shown = Sample(sample.labels, chance, False)
    theirs = keras.metrics.AUC(num_thresholds=THRESHOLDS)
    theirs.update_state(shown.labels.astype(np.float32), shown.scores)
    found = Errors(
        cumulative=feed(CumulativeAUC(from_logits=logits), sample) - plain,
        decayed=feed(DecayedAUC(HALF_LIFE, from_logits=logits), sample)
        - exact_auc(sample, 2.0 ** ((steps - steps[-1]) / HALF_LIFE)),
        windowed=feed(WindowedAUC(window, from_logits=logits), sample)
        - exact_auc(sample, recent.astype(np.float64)),
        keras=float(theirs.result()) - exact_auc(shown, np.ones(n)),
    )
    return Errors(*(abs(error) for error in found))


def measure_costs(repetitions: int) -> dict[str, NDArray[np.float64]]:
    """Return milliseconds per update of every contender, one value per repetition."""
    import keras
    import tensorflow as tf

    block, slow_block = 64, 8
    sample = ctr_3_percent(np.random.default_rng(0), block * BATCH)
    labels = sample.labels.astype(np.float32).reshape(block, BATCH)
    scores = sample.scores.reshape(block, BATCH)
    tensors = [(tf.constant(y), tf.constant(p)) for y, p in zip(labels, scores, strict=True)]
    theirs, eager = (keras.metrics.AUC(num_thresholds=THRESHOLDS) for _ in range(2))
    graph_update = tf.function(theirs.update_state)
    metrics = {
        "ours": DecayedAUC(HALF_LIFE),
        "ours_cumulative": CumulativeAUC(),
        "ours_windowed": WindowedAUC(HALF_LIFE),
    }
    clock = 0

    def run_ours(metric: DecayedAUC | WindowedAUC) -> int:
        for i in range(block):
            metric.update(labels[i], scores[i], clock + i)
        return block

    def run_graph() -> int:
        for y, p in tensors:
            graph_update(y, p)
        return block

    def run_eager() -> int:
        for y, p in tensors[:slow_block]:
            eager.update_state(y, p)
        return slow_block

    runs: dict[str, Callable[[], int]] = {
        name: (lambda metric=metric: run_ours(metric)) for name, metric in metrics.items()
    }
    runs |= {"keras": run_graph, "keras_eager": run_eager}
    times: dict[str, list[float]] = {name: [] for name in [*runs, "result"]}
    for repetition in range(-2, repetitions):
        for name, run in runs.items():
            start = time.perf_counter()
            updates = run()
            elapsed = 1e3 * (time.perf_counter() - start) / updates
            if repetition >= 0:  # the first two warm up
                times[name].append(elapsed)
        start = time.perf_counter()
        metrics["ours"].result()
        times["result"].append(1e3 * (time.perf_counter() - start))
        clock += block
    return {name: np.array(values) for name, values in times.items()}


def print_errors(errors: dict[str, Errors]) -> None:
    print(f"{'absolute error':<26}{'cumulative':>12}{'decayed':>12}{'windowed':>12}{'keras':>12}")
    for name, row in errors.items():
        print(f"{name:<26}" + "".join(f"{error:>12.1e}" for error in row))


def print_costs(costs: dict[str, NDArray[np.float64]]) -> None:
    print(f"\n{'ms per update of 1,024':<26}{'median':>12}{'p10':>12}{'p90':>12}")
    titles = {
        "ours": "DecayedAUC",
        "ours_cumulative": "CumulativeAUC",
        "ours_windowed": "WindowedAUC",
        "keras": "keras in a tf.function",
        "keras_eager": "keras eager",
        "result": "DecayedAUC.result()",
    }
    for name, title in titles.items():
        p10, median, p90 = np.percentile(costs[name], [10, 50, 90])
        print(f"{title:<26}{median:>12.4f}{p10:>12.4f}{p90:>12.4f}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auc", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer predictions and seeds")
    quick = parser.parse_args(argv).quick
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    seeds, n, repetitions = (1, 100_000, 5) if quick else (3, 1_000_000, 25)

    costs = measure_costs(repetitions)
    errors = {
        name: Errors(*np.max([measure_errors(name, seed, n) for seed in range(seeds)], axis=0))
        for name in DISTRIBUTIONS
    }
    print(f"{n:,} predictions, {seeds} seed(s), half-life {HALF_LIFE} steps\n")
    print_errors(errors)
    print_costs(costs)
    medians = {name: float(np.median(values)) for name, values in costs.items()}
    result = {
        "max_abs_error": max(max(row[:3]) for row in errors.values()),
        "keras_max_abs_error": max(row.keras for row in errors.values()),
        "keras_cost_ratio": medians["keras"] / medians["ours"],
        "keras_eager_cost_ratio": medians["keras_eager"] / medians["ours"],
        "update_ms": medians["ours"],
        "cumulative_update_ms": medians["ours_cumulative"],
        "windowed_update_ms": medians["ours_windowed"],
        "keras_update_ms": medians["keras"],
        "keras_eager_update_ms": medians["keras_eager"],
        "result_ms": medians["result"],
        "predictions": n,
    }
    for name, row in errors.items():
        result |= {f"{name}_{kind}_error": error for kind, error in row._asdict().items()}
    print("\nRESULT " + json.dumps({key: float(value) for key, value in result.items()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
