"""The synchronizations side by side: two workers, one parameter server, real processes.

    python -m benchmarks.synchronization [--rounds 3] [--steps 2000] [--only sync,tf-sync]

Each is a run of ``deepinsight train`` with ``wide-deep`` on ``digits``, 100 examples per worker and
step; beside them stand one process without a parameter server, and TensorFlow's own asynchronous
and SyncReplicas path with the same model, data and rule (`tensorflow_path`). Contenders take turns
within a round. A figure is the median of the rounds, ± half the interquartile range. Rates are
taken while all workers are at work:

========================  ========================================================================
``NAME_steps_per_s``      Global steps per second; of model-average, block-momentum and
                          elastic-average: steps of one worker, as ``--steps`` counts them.
``NAME_samples_per_s``    Examples per second, of all workers.
``NAME_train_auc``        AUC on a sample of the training part at the end.
``NAME_eval_auc``         AUC on the held-out part at the end.
``NAME_staleness``        Mean staleness of the pushes, in updates.
``async_vs_tf``           Steps per second / those of TensorFlow's own path in the same round: above
                          1, this one is faster. Also ``sync_vs_tf``.
``..._iqr``               Interquartile range of the figure before.
========================  ========================================================================

NAME has underscores for hyphens. The last line is ``RESULT`` and a flat JSON object.
"""

import argparse
import json
import math
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.synchronization.runs import Timing, own, tensorflow

CLUSTER = ["--ps", "1", "--workers", "2"]
# Of the name on the left: arguments of `deepinsight train`.
RUNS = {
    "local": ["--ps", "0", "--workers", "1"],
    "async": CLUSTER,
    "sync": [*CLUSTER, "--synchronization", "sync"],
    "in-graph": [*CLUSTER, "--synchronization", "sync", "--replication", "in-graph"],
    "drop-stale": [*CLUSTER, "--synchronization", "drop-stale"],
    "bounded": [*CLUSTER, "--synchronization", "bounded"],
    "softsync": [*CLUSTER, "--synchronization", "softsync"],
    "model-average": [*CLUSTER, "--synchronization", "model-average"],
    "block-momentum": [*CLUSTER, "--synchronization", "block-momentum"],
    "elastic-average": [*CLUSTER, "--synchronization", "elastic-average"],
    "elastic-average-sync": [
        *CLUSTER, "--synchronization", "elastic-average", "--synchronous-exchange",
    ],
    "gradient-compression": [
        *CLUSTER, "--synchronization", "gradient-compression",
    ],
    "kfac": [*CLUSTER, "--synchronization", "kfac"],
}  # fmt: skip
TENSORFLOW = {"tf-async": "async", "tf-sync": "sync"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.synchronization",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--only", default="", metavar="NAME,...", help="only these")
    parser.add_argument("--keep", metavar="DIR", help="keep the runs here, to look at them")
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",") if arguments.only else [*RUNS, *TENSORFLOW]
    if unknown := set(names) - set(RUNS) - set(TENSORFLOW):
        raise SystemExit(f"--only must name some of {', '.join([*RUNS, *TENSORFLOW])}: {unknown}.")
    timings: dict[str, list[Timing]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.keep or temporary)
        for number in range(arguments.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                timing = _run(name, folder / f"{name}-{number}", arguments.steps)
                timings[name].append(timing)
                print(
                    f"round {number + 1}: {name:22} {timing.steps_per_s:6.0f} steps/s", flush=True
                )
    results = _summarise(timings)
    _show(names, results)
    print("\nRESULT " + json.dumps({key: float(f"{value:.4g}") for key, value in results.items()}))
    return 0


def _run(name: str, folder: Path, steps: int) -> Timing:
    if name in TENSORFLOW:
        return tensorflow(folder, TENSORFLOW[name], steps)
    return own(folder, [*RUNS[name], "--steps", str(steps)])


def _summarise(timings: dict[str, list[Timing]]) -> dict[str, float]:
    results: dict[str, float] = {}

    def enter(key: str, values: list[float]) -> None:
        low, median, high = np.percentile(values, [25, 50, 75])
        if math.isfinite(median):
            results[key], results[f"{key}_iqr"] = float(median), float(high - low)

    for name, rounds in timings.items():
        for field in asdict(rounds[0]):
            enter(f"{name.replace('-', '_')}_{field}", [getattr(t, field) for t in rounds])
    for theirs, kind in TENSORFLOW.items():
        if kind in timings and theirs in timings:
            pairs = zip(timings[kind], timings[theirs], strict=True)
            enter(f"{kind}_vs_tf", [a.steps_per_s / b.steps_per_s for a, b in pairs])
    return results


def _show(names: list[str], results: dict[str, float]) -> None:
    columns = ("steps_per_s", "samples_per_s", "train_auc", "eval_auc", "staleness")
    print(f"\n{'':22}" + "".join(f"{column:>18}" for column in columns))
    for name in names:
        cells = []
        for column in columns:
            key = f"{name.replace('-', '_')}_{column}"
            digits = 4 if column.endswith("auc") else 2 if column == "staleness" else 0
            known = key in results
            spread = results.get(f"{key}_iqr", 0.0) / 2
            cells.append(f"{results[key]:.{digits}f} ± {spread:.{digits}f}" if known else "")
        print(f"{name:22}" + "".join(f"{cell:>18}" for cell in cells))
    for key in ("async_vs_tf", "sync_vs_tf"):
        if key in results:
            print(f"{key}: {results[key]:.2f} ± {results[f'{key}_iqr'] / 2:.2f}")


if __name__ == "__main__":
    raise SystemExit(main())
