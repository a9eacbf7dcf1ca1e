"""The command line of ``deepinsight train``; no TensorFlow."""

import argparse
from collections.abc import Mapping
from typing import Any

from deepinsight.trainer import options as known
from deepinsight.trainer.synchronization import (
    REPLICATIONS,
    SETTINGS,
    SYNCHRONIZATIONS,
    Setting,
)

DESCRIPTION = """\
Train a model on parameter servers and workers, and record the run.

Without TF_CONFIG in the environment all processes are started on this machine; --workers 1 --ps 0
is a plain run in one process. With TF_CONFIG (jobs chief, worker and ps) this process takes its
place in a cluster: start it with the same options everywhere.
"""
DEFAULT_STEPS = 2000


def parser() -> argparse.ArgumentParser:
    """The command line; defaults that depend on other options are left to `Options`."""
    top = argparse.ArgumentParser(
        "deepinsight train",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    run = top.add_argument_group("run")
    run.add_argument(
        "--run-dir", metavar="DIR", help="where (default: runs/, named by the options)"
    )
    run.add_argument("--resume", action="store_true", help="continue the run in --run-dir")
    run.add_argument("--steps", type=int, help=f"global steps (default: {DEFAULT_STEPS})")
    run.add_argument(
        "--epochs", type=int, help="passes over each worker's data (default: no limit)"
    )
    run.add_argument("--batch-size", type=int, help="examples per worker and step (default: 100)")
    run.add_argument("--eval-every", type=int, help="global steps; 0: at the end (default: 200)")
    run.add_argument(
        "--checkpoint-every", type=int, help="global steps; 0: no checkpoints (default: 1000)"
    )
    run.add_argument(
        "--trace-every",
        type=int,
        help="global steps between snapshots of weights and gradients; 0: none (default: 100)",
    )
    run.add_argument("--seed", type=int, help="of weights and batches (default: 1)")
    _add_model(top.add_argument_group("model and update rule"))
    _add_data(top.add_argument_group("data"))
    _add_cluster(top.add_argument_group("cluster"))
    _add_synchronization(top.add_argument_group("synchronization"))
    return top


def _add_model(group: Any) -> None:
    group.add_argument("--model", choices=known.MODELS, help="(default: wide-deep)")
    group.add_argument(
        "--hidden",
        type=_widths,
        metavar="N,N,…",
        help="widths of the tower (default: dense 256,128,64,32; wide-deep 64,32)",
    )
    group.add_argument("--embedding-dim", type=int, help="wide-deep (default: 16)")
    group.add_argument("--input-width", type=int, help="dense: input columns (default: 1130)")
    group.add_argument(
        "--optimizer",
        choices=known.OPTIMIZERS,
        help="(default: adagrad; gradient-compression sgd, kfac momentum)",
    )
    group.add_argument(
        "--learning-rate",
        type=float,
        help=f"(default: {_defaults(known.DEFAULT_LEARNING_RATES)})",
    )
    group.add_argument(
        "--momentum",
        type=float,
        help="of momentum, boosted-momentum and lars, and of gradient-compression on the worker "
        "(default: 0.9)",
    )
    group.add_argument(
        "--nesterov",
        action="store_true",
        help=f"look ahead ({', '.join(known.NESTEROV)}); with elastic-average it makes EAMSGD",
    )
    group.add_argument(
        "--variance-parameter",
        type=float,
        help=f"λ of dc-asgd (default: {_defaults(known.DEFAULT_VARIANCE_PARAMETERS)})",
    )
    group.add_argument(
        "--boost", type=float, help="boosted-…: strength λ of the correction (default: 0.5)"
    )
    group.add_argument(
        "--staleness-scale",
        type=float,
        help="boosted-…: staleness that halves the correction (default: 10)",
    )


def _defaults(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _add_data(group: Any) -> None:
    group.add_argument("--data", choices=known.DATA, help="(default: digits)")
    group.add_argument("--data-path", metavar="FILE", help="criteo: the file, .gz or plain")
    group.add_argument("--hash-buckets", type=int, help="criteo: IDs per category (default: 10000)")
    group.add_argument(
        "--held-out", type=int, help="ctr, criteo: held-out examples (default: 4096)"
    )
    group.add_argument("--ctr-groups", type=int, help="feature groups (default: 8)")
    group.add_argument("--ctr-slots", type=int, help="IDs per group (default: 2)")
    group.add_argument("--ctr-vocabulary", type=int, help="different IDs per group (default: 1000)")
    group.add_argument("--ctr-zipf", type=float, help="exponent of the Zipf law (default: 1.1)")
    group.add_argument("--ctr-click-rate", type=float, help="share of clicks (default: 0.2)")
    group.add_argument("--ctr-signal", type=float, help="spread of the true score (default: 1.5)")
    group.add_argument(
        "--ctr-drift", type=int, help="examples per turn of the truth; 0: none (default: 0)"
    )
    group.add_argument(
        "--ctr-leak", type=float, help="strength 0 to 1 of a leaking group (default: 0: no group)"
    )


def _add_cluster(group: Any) -> None:
    group.add_argument("--ps", type=int, help="parameter servers (default: 1)")
    group.add_argument("--workers", type=int, help="(default: 2)")
    group.add_argument(
        "--barrier-timeout",
        type=float,
        help="seconds that workers wait for each other: at the start, for a round, and the chief "
        "at the end while no one makes a step; then they go on without who is late (default: 60)",
    )
    group.add_argument(
        "--replication",
        choices=REPLICATIONS,
        help="in-graph: one client that drives all workers (default: between-graph)",
    )
    group.add_argument(
        "--placement",
        metavar="layers=P,P,…",
        help="where each layer of the tower is computed: here, ps:K or, in-graph, worker:K",
    )


def _add_synchronization(group: Any) -> None:
    group.add_argument("--synchronization", choices=SYNCHRONIZATIONS, help="(default: async)")
    for name, setting in SETTINGS.items():
        flag, text = "--" + name.replace("_", "-"), _described(setting)
        if setting.type is bool:
            group.add_argument(flag, action="store_true", help=text)
        else:
            group.add_argument(flag, type=setting.type, metavar="VALUE", help=text)


def _described(setting: Setting) -> str:
    """The synchronizations that a setting belongs to, what it is, and its defaults."""
    shown = {
        name: value
        for name, value in setting.of.items()
        if value is not None and not isinstance(value, bool) and not callable(value)
    }
    different = len(set(shown.values())) > 1
    defaults = _defaults(shown) if different else "".join(map(str, {*shown.values()}))
    ending = f" (default: {defaults})" if shown else ""
    return f"{', '.join(setting.of)}: {setting.help}{ending}"


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers with commas between them, such as 64,32. Received: {text!r}"
        ) from None
