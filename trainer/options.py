"""What a run is told: one frozen object, checked once, the same in every process."""

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinsight.trainer.errors import OptionError
from deepinsight.trainer.placement import check_placement, uses_workers
from deepinsight.trainer.synchronization import (
    LOCAL,
    REPLICATIONS,
    SETTINGS,
    SYNCHRONIZATIONS,
    TOGETHER,
    check_restores,
    check_rule,
    default_optimizer,
    settle,
)

MODELS = ("dense", "wide-deep")
DATA = ("digits", "ctr", "criteo")
# Update rules that correct a gradient for what happened since the worker pulled.
COMPENSATED = (
    "dc-asgd", "dc-asgd-adaptive",
    "boosted-sgd", "boosted-momentum", "boosted-adagrad", "boosted-adam",
)  # fmt: skip
NESTEROV = ("momentum", "boosted-momentum", "lars")
# Update rules with kernels of our own.
KERNELS = (*COMPENSATED, "lars")
OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam", "ftrl", *KERNELS)

DEFAULT_LEARNING_RATES = {
    "sgd": 0.1,
    "momentum": 0.02,
    "adagrad": 0.1,
    "adam": 0.001,
    "ftrl": 0.1,
    "dc-asgd": 0.1,
    "dc-asgd-adaptive": 0.1,
    "boosted-sgd": 0.1,
    "boosted-momentum": 0.02,
    "boosted-adagrad": 0.1,
    "boosted-adam": 0.001,
    "lars": 0.3,
}
# Zheng et al., 2017, arXiv:1609.08326.
DEFAULT_VARIANCE_PARAMETERS = {"dc-asgd": 0.04, "dc-asgd-adaptive": 2.0}
DEFAULT_HIDDEN = {"dense": (256, 128, 64, 32), "wide-deep": (64, 32)}

# What a resumed run must share with the run that it continues: the shapes of the model and the
# law of the data. Everything else (rule's rate, batch size, cluster, cadence) may change.
MODEL_OPTIONS = ("model", "hidden", "embedding_dim", "input_width", "optimizer")
DATA_OPTIONS = (
    "data",
    "data_path",
    "hash_buckets",
    "ctr_groups",
    "ctr_slots",
    "ctr_vocabulary",
    "ctr_zipf",
    "ctr_click_rate",
    "ctr_signal",
    "ctr_drift",
    "ctr_leak",
)


def checkpoint_dir(run_dir: str) -> str:
    """Where a run keeps its checkpoints."""
    return str(Path(run_dir) / "checkpoints")


def has_checkpoint(run_dir: str) -> bool:
    """Whether a run has a checkpoint, from which ``--resume`` could continue."""
    return (Path(checkpoint_dir(run_dir)) / "checkpoint").exists()


def checkpoint_step(run_dir: str) -> int | None:
    """The global step of a run's newest checkpoint; None if there is none."""
    if not has_checkpoint(run_dir):
        return None
    state = (Path(checkpoint_dir(run_dir)) / "checkpoint").read_text(encoding="utf-8")
    newest = re.search(r'^model_checkpoint_path: ".*-(\d+)"$', state, re.MULTILINE)
    return int(newest[1]) if newest else None


@dataclass(frozen=True)
class Options:
    """The options of ``deepinsight train``; each is described by its ``--help``.

    Raises:
        OptionError: If a value is out of range or two options contradict each other.
    """

    run_dir: str
    model: str = "wide-deep"
    hidden: tuple[int, ...] = ()
    embedding_dim: int = 16
    input_width: int = 1130
    data: str = "digits"
    data_path: str | None = None
    hash_buckets: int = 10_000
    held_out: int = 4096
    ctr_groups: int = 8
    ctr_slots: int = 2
    ctr_vocabulary: int = 1000
    ctr_zipf: float = 1.1
    ctr_click_rate: float = 0.2
    ctr_signal: float = 1.5
    ctr_drift: int = 0
    ctr_leak: float = 0.0
    optimizer: str | None = None
    learning_rate: float | None = None
    momentum: float = 0.9
    variance_parameter: float | None = None
    boost: float = 0.5
    staleness_scale: float = 10.0
    nesterov: bool = False
    synchronization: str = "async"
    replicas_to_aggregate: int | None = None
    staleness_bound: int | None = None
    splits: int | None = None
    staleness_weighting: str | None = None
    communication_period: int | None = None
    block_momentum: float | None = None
    block_learning_rate: float | None = None
    block_nesterov: bool | None = None
    moving_rate: float | None = None
    synchronous_exchange: bool | None = None
    sparsity: float | None = None
    warm_up_steps: int | None = None
    clip_norm: float | None = None
    damping: float | None = None
    covariance_decay: float | None = None
    inverse_every: int | None = None
    burn_in: int | None = None
    norm_constraint: float | None = None
    replication: str = "between-graph"
    placement: str | None = None
    ps: int = 1
    workers: int = 2
    batch_size: int = 100
    steps: int | None = 2000
    epochs: int | None = None
    eval_every: int = 200
    checkpoint_every: int = 1000
    trace_every: int = 100
    seed: int = 1
    resume: bool = False
    barrier_timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.optimizer is None:
            object.__setattr__(self, "optimizer", default_optimizer(self.synchronization))
        for name, choices in (
            ("model", MODELS),
            ("data", DATA),
            ("optimizer", OPTIMIZERS),
            ("synchronization", SYNCHRONIZATIONS),
            ("replication", REPLICATIONS),
        ):
            self._check(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        self._settle()
        self._check_ranges()
        self._check_combinations()

    def _settle(self) -> None:
        """Put in the defaults that depend on other options."""
        settled: dict[str, Any] = {"hidden": tuple(self.hidden) or DEFAULT_HIDDEN[self.model]}
        if self.learning_rate is None:
            settled["learning_rate"] = DEFAULT_LEARNING_RATES[self.optimizer]
        if self.variance_parameter is None:
            settled["variance_parameter"] = DEFAULT_VARIANCE_PARAMETERS.get(self.optimizer)
        settled |= {name: v for name, v in settle(self).items() if v is not None}
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    def _check(self, name: str, holds: bool, must: str) -> None:
        if not holds:
            raise OptionError(f"{_flag(name)} must be {must}. Received: {getattr(self, name)}.")

    def _check_ranges(self) -> None:
        at_least = {
            "embedding_dim": 1, "input_width": 1, "hash_buckets": 2, "held_out": 2,
            "ctr_groups": 1, "ctr_slots": 1, "ctr_vocabulary": 2, "ctr_drift": 0,
            "ps": 0, "workers": 1, "batch_size": 1, "eval_every": 0, "checkpoint_every": 0,
            "trace_every": 0, "seed": 0,
        }  # fmt: skip
        for name, least in at_least.items():
            self._check(name, getattr(self, name) >= least, f">= {least}")
        self._check("hidden", all(width >= 1 for width in self.hidden), "widths >= 1")
        for name in ("steps", "epochs"):
            value = getattr(self, name)
            self._check(name, value is None or value >= 1, ">= 1")
        for name in ("learning_rate", "staleness_scale", "ctr_signal", "barrier_timeout"):
            self._check(name, 0 < getattr(self, name) < math.inf, "finite and > 0")
        self._check("momentum", 0 <= self.momentum < 1, ">= 0 and < 1")
        self._check("boost", 0 <= self.boost < 1, ">= 0 and < 1")
        strength = self.variance_parameter
        in_range = strength is None or 0 <= strength < math.inf
        self._check("variance_parameter", in_range, "finite and >= 0")
        self._check("ctr_zipf", 0 <= self.ctr_zipf < math.inf, "finite and >= 0")
        self._check("ctr_click_rate", 0 < self.ctr_click_rate < 1, "> 0 and < 1")
        self._check("ctr_leak", 0 <= self.ctr_leak <= 1, ">= 0 and <= 1")

    def _check_combinations(self) -> None:
        if self.steps is None and self.epochs is None:
            raise OptionError("One of --steps and --epochs must be given, or training never ends.")
        if self.ps == 0 and self.workers > 1:
            raise OptionError(
                f"Several workers share their variables on a parameter server: --workers "
                f"{self.workers} needs --ps >= 1. Received: --ps 0."
            )
        check_rule(self.synchronization, self.optimizer, self.compensated)
        self._check_cluster()
        if (
            self.variance_parameter is not None
            and self.optimizer not in DEFAULT_VARIANCE_PARAMETERS
        ):
            raise OptionError(
                f"--variance-parameter belongs to --optimizer dc-asgd and dc-asgd-adaptive. "
                f"Received: --optimizer {self.optimizer}."
            )
        if self.data == "criteo" and not self.data_path:
            raise OptionError("--data criteo needs --data-path, the file of tab-separated values.")
        if self.data != "criteo" and self.data_path:
            raise OptionError(f"--data {self.data} reads no file. Leave out --data-path.")
        if self.data == "ctr" and self.epochs is not None:
            raise OptionError("--data ctr is an endless stream. Use --steps, not --epochs.")

    def _check_cluster(self) -> None:
        if self.ps == 0 and self.synchronization in LOCAL:
            raise OptionError(
                f"--synchronization {self.synchronization} keeps the shared model on a parameter "
                f"server: it needs --ps >= 1. Received: --ps 0."
            )
        if (self.communication_period or 0) > (self.steps or math.inf):
            raise OptionError(
                f"--communication-period must be <= --steps ({self.steps}), or the workers never "
                f"exchange anything and the shared model is never trained. Received: "
                f"{self.communication_period}."
            )
        if (self.replicas_to_aggregate or 0) > self.workers:
            raise OptionError(
                f"--replicas-to-aggregate must be <= --workers ({self.workers}); the workers "
                f"beyond it are backups. Received: {self.replicas_to_aggregate}."
            )
        if (self.splits or 0) > self.workers:
            raise OptionError(
                f"--splits must be <= --workers ({self.workers}): a gradient at a time is the "
                f"most. Received: {self.splits}."
            )
        if self.nesterov and self.optimizer not in NESTEROV:
            raise OptionError(
                f"--nesterov belongs to --optimizer {', '.join(NESTEROV)}. Received: --optimizer "
                f"{self.optimizer}."
            )
        if self.replication == "in-graph":
            self._check_in_graph()
        if self.placement is not None:
            check_placement(
                self.placement, len(self.hidden) + 1, ps=self.ps, workers=self.towers,
                synchronization=self.synchronization,
            )  # fmt: skip

    def _check_in_graph(self) -> None:
        if self.synchronization != "sync" or self.replicas_to_aggregate != self.workers:
            raise OptionError(
                "--replication in-graph is one client that averages the gradients of all workers: "
                "it needs --synchronization sync without backup workers. Received: "
                f"--synchronization {self.synchronization}."
            )
        if self.ps == 0:
            raise OptionError(
                "--replication in-graph keeps the variables on a parameter server: it needs --ps "
                ">= 1. Received: --ps 0."
            )

    @property
    def towers(self) -> int:
        """Workers whose devices one client can use: all of them in-graph, else its own alone."""
        return self.workers if self.replication == "in-graph" else 0

    @property
    def compensated(self) -> bool:
        """Whether the update rule wants to know what the worker pulled, and how stale it is."""
        return self.optimizer in COMPENSATED

    def examples(self, step: int) -> int:
        """How many training examples all workers together have drawn up to a global step.

        ``step * batch_size``, and that times `workers` where every worker computes a batch for
        each step, or times the gradients of an update of softsync.
        """
        return step * self.samples_per_step

    @property
    def samples_per_push(self) -> int:
        """How many examples a training process computes at a time."""
        return self.samples_per_step if self.replication == "in-graph" else self.batch_size

    @property
    def samples_per_step(self) -> int:
        """How many examples all workers together compute for a step."""
        return self.batch_size * self._batches_per_step

    @property
    def _batches_per_step(self) -> int:
        if uses_workers(self.placement):
            return 1  # one replica, spread over the workers
        if self.synchronization in TOGETHER:
            return self.workers
        return self.workers // self.splits if self.splits else 1

    def config(self) -> dict[str, Any]:
        """The options as JSON values, for ``run.json``; `hidden` becomes a list."""
        values = dataclasses.asdict(self)
        for name in ("run_dir", "resume"):
            del values[name]
        more = {"hidden": list(self.hidden), "samples_per_step": self.samples_per_step}
        return {**values, **more}

    @staticmethod
    def taken_over(given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        """What a resumed run is told: what was given now, and else what the run was told.

        Args:
            given: Options that are given now.
            config: `Run.config` of the run to continue.

        Returns:
            Arguments for `Options`. ``--steps`` and ``--epochs`` go together: one that is given
            replaces both. Settings of a synchronization are taken over with it; those whose
            default follows the number of workers only where they were something else.
        """
        names = {field.name for field in dataclasses.fields(Options)}
        taken = {name: value for name, value in config.items() if name in names}
        if {"steps", "epochs"} & set(given):
            taken |= {"steps": None, "epochs": None}
        before = taken.get("synchronization")
        for name, setting in SETTINGS.items():
            default = setting.of.get(before)
            if callable(default) and taken.get(name) == default(taken["workers"]):
                taken[name] = None
        if given.get("synchronization", before) != before:
            taken |= dict.fromkeys((*SETTINGS, "placement"))
            taken["replication"] = "between-graph"
        if given.get("optimizer", taken.get("optimizer")) != taken.get("optimizer"):
            taken["variance_parameter"] = None  # `check_resumes` refuses the other rule by name
        together = {**taken, **given}
        return {**together, "hidden": tuple(together.get("hidden", ()))}

    def differences(self, config: dict[str, Any]) -> list[str]:
        """What differs from the run's configuration, one line per option."""
        return [
            f"{_flag(name)} was {_shown(config[name])}, is {_shown(value)} now"
            for name, value in self.config().items()
            if name in config and config[name] != value and name != "samples_per_step"
        ]

    def check_resumes(self, config: dict[str, Any]) -> None:
        """Check that a run with this configuration can be continued with these options.

        Args:
            config: `Run.config` of the run to continue.

        Raises:
            OptionError: If the model or the data differ, or the checkpoint lacks what the
                synchronization keeps; the message names the option.
        """
        mine = self.config()
        for name in (*MODEL_OPTIONS, *DATA_OPTIONS):
            if name in config and config[name] != mine[name]:
                raise OptionError(
                    f"--resume continues the same model on the same data: {_flag(name)} was "
                    f"{_shown(config[name])} in {self.run_dir}. Received: {_shown(mine[name])}. "
                    f"Give the same value, or start a new run in another --run-dir."
                )
        check_restores(self.synchronization, config.get("synchronization", self.synchronization))
        if self.optimizer == "dc-asgd-adaptive" and config.get("workers") != self.workers:
            raise OptionError(
                f"--resume of --optimizer dc-asgd-adaptive needs as many --workers as before, "
                f"{config.get('workers')}: each has a mean square in the checkpoint. "
                f"Received: {self.workers}."
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
