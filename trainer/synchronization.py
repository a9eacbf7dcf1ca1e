"""Where gradients meet: what ``--synchronization`` offers, and which option belongs to which.

====================  =====================================================================
async                 every push is applied at once (Downpour)
sync                  a round waits for all workers, or for all but the backups
drop-stale            async, but a gradient older than a bound is dropped
bounded               async, but a worker too far ahead of the slowest waits (stale synchronous)
softsync              the server updates after a number of gradients, weighted by staleness
model-average         workers step alone; their models are averaged now and then
block-momentum        the same, with momentum on the averages (BMUF)
elastic-average       workers step alone, each tied to a centre by an elastic force (EASGD)
gradient-compression  async, but only the largest gradient elements travel (DGC)
kfac                  async, preconditioned by Kronecker factors that other workers compute
====================  =====================================================================
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deepinsight.trainer.errors import OptionError

SYNCHRONIZATIONS = (
    "async", "sync", "drop-stale", "bounded", "softsync", "model-average", "block-momentum",
    "elastic-average", "gradient-compression", "kfac",
)  # fmt: skip
# Workers step alone on copies of their own; a step is then a worker's own step.
LOCAL = ("model-average", "block-momentum", "elastic-average")
# A step is one of all workers: each has computed a batch for it.
TOGETHER = ("sync", *LOCAL)
# No worker ever waits for another.
ALONE = ("async", "drop-stale", "softsync", "gradient-compression", "kfac")
# With kernels of this project on the parameter servers or the workers.
KERNELS = ("softsync", "block-momentum", "elastic-average", "gradient-compression")
REPLICATIONS = ("between-graph", "in-graph")
# What a checkpoint has beside the global step; that of the others has the weights.
CHECKPOINTS = {
    "model-average": {"averages"},
    "block-momentum": {"averages", "block updates"},
    "elastic-average": {"averages"},
    "kfac": {"weights", "covariances"},
}


@dataclass(frozen=True)
class Setting:
    """An option of some synchronizations.

    Attributes:
        of: The synchronizations, with the default of each: a value, or a function of the number
            of workers. None: the optimizer's own default.
        type: What a value on the command line is made with; bool is a switch.
        must: Where a value must lie, in words.
        holds: Whether a value does.
        help: For ``--help``, without the defaults.
    """

    of: Mapping[str, Any]
    type: Callable[[str], Any]
    must: str
    holds: Callable[[Any], bool]
    help: str


def _at_least(least: int) -> dict[str, Any]:
    return {"type": int, "must": f">= {least}", "holds": lambda value: value >= least}


_POSITIVE = {"type": float, "must": "finite and > 0", "holds": lambda v: 0 < v < math.inf}
_SHARE = {"type": float, "must": ">= 0 and < 1", "holds": lambda v: 0 <= v < 1}
_SWITCH = {"type": bool, "must": "true or false", "holds": lambda v: isinstance(v, bool)}

SETTINGS: dict[str, Setting] = {
    "replicas_to_aggregate": Setting(
        {"sync": lambda workers: workers},
        **_at_least(1),
        help="gradients per round; workers beyond it are backups (default: all workers)",
    ),
    "staleness_bound": Setting(
        {"drop-stale": 10, "bounded": 3},
        **_at_least(0),
        help="the largest staleness that is accepted, or the steps that a worker may be ahead of "
        "the slowest",
    ),
    "splits": Setting(
        {"softsync": 1},
        **_at_least(1),
        help="n: the server updates after workers / n gradients",
    ),
    "staleness_weighting": Setting(
        {"softsync": "inverse"},
        type=str,
        must="inverse or none",
        holds=lambda value: value in ("inverse", "none"),
        help="inverse: the rate of a gradient is divided by its staleness; none: it is not",
    ),
    "communication_period": Setting(
        {"model-average": 100, "block-momentum": 100, "elastic-average": 10},
        **_at_least(1),
        help="own steps between two exchanges",
    ),
    "block_momentum": Setting(
        {"block-momentum": lambda workers: 1 - 1 / workers},
        **_SHARE,
        help="momentum of the averages (default: 1 - 1 / workers)",
    ),
    "block_learning_rate": Setting(
        {"block-momentum": 1.0}, **_POSITIVE, help="step size of the averages"
    ),
    "block_nesterov": Setting(
        {"block-momentum": False}, **_SWITCH, help="hand out the averages with a look ahead"
    ),
    "moving_rate": Setting(
        {"elastic-average": None},
        type=float,
        must="> 0 and <= 1",
        holds=lambda value: 0 < value <= 1,
        help="share of the distance to the centre that an exchange takes back (default: 0.9 / "
        "period / workers)",
    ),
    "synchronous_exchange": Setting(
        {"elastic-average": False},
        **_SWITCH,
        help="all workers exchange with the centre at the same time",
    ),
    "sparsity": Setting(
        {"gradient-compression": 0.999}, **_SHARE, help="share of elements that stay behind"
    ),
    "warm_up_steps": Setting(
        {"gradient-compression": 400},
        **_at_least(0),
        help="own steps over which the sparsity rises to its value",
    ),
    "clip_norm": Setting(
        {"gradient-compression": None},
        **_POSITIVE,
        help="largest norm of a gradient, divided by the root of the number of workers (default: "
        "no limit)",
    ),
    "damping": Setting({"kfac": 0.03}, **_POSITIVE, help="λ added to the curvature"),
    "covariance_decay": Setting({"kfac": 0.95}, **_SHARE, help="of the averaged covariances"),
    "inverse_every": Setting({"kfac": 10}, **_at_least(1), help="global steps between inverses"),
    "burn_in": Setting(
        {"kfac": 20}, **_at_least(0), help="covariances that are averaged before the first use"
    ),
    "norm_constraint": Setting(
        {"kfac": None}, **_POSITIVE, help="cap of the step's squared Fisher norm (default: no cap)"
    ),
}  # fmt: skip


def settle(options: Any) -> dict[str, Any]:
    """Fill in the defaults of the synchronization's settings, and check those that were given.

    Args:
        options: The options; a setting that was not given is None.

    Returns:
        The settings that get a default.

    Raises:
        OptionError: If a setting is out of range or belongs to another synchronization.
    """
    settled = {}
    for name, setting in SETTINGS.items():
        value = getattr(options, name)
        flag = "--" + name.replace("_", "-")
        if value is None:
            default = setting.of.get(options.synchronization)
            settled[name] = default(options.workers) if callable(default) else default
        elif options.synchronization not in setting.of:
            raise OptionError(
                f"{flag} needs --synchronization {' or '.join(setting.of)}. Received: "
                f"--synchronization {options.synchronization}."
            )
        elif not setting.holds(value):
            raise OptionError(f"{flag} must be {setting.must}. Received: {value}.")
    return settled


def default_optimizer(synchronization: str) -> str:
    """The update rule of a synchronization for which none was given."""
    return {"gradient-compression": "sgd", "kfac": "momentum"}.get(synchronization, "adagrad")


def check_rule(synchronization: str, optimizer: str, compensated: bool) -> None:
    """Check that an update rule makes sense with a synchronization.

    Args:
        synchronization: The value of ``--synchronization``.
        optimizer: The value of ``--optimizer``.
        compensated: Whether the rule corrects a gradient for its staleness.

    Raises:
        OptionError: If not; the message gives the reason and what to take instead.
    """
    for applies, reason in (
        (
            synchronization == "gradient-compression" and optimizer != "sgd",
            "the worker accumulates with momentum before it compresses, and a server that did more "
            "than plain descent would count it twice. Use sgd, with --momentum for the worker.",
        ),
        (
            synchronization == "kfac" and optimizer not in ("sgd", "momentum"),
            "the gradient is scaled by its curvature already. Use sgd or momentum, which take it "
            "as it is.",
        ),
        (
            synchronization == "sync" and compensated,
            "the rule corrects stale gradients, and synchronous rounds have none. Use async, or "
            "the plain rule.",
        ),
        (
            synchronization == "softsync" and compensated,
            "the rule corrects the gradient of one worker for what that worker had pulled, and the "
            "server applies means of several. Use async, or the plain rule.",
        ),
        (
            synchronization in LOCAL and compensated,
            "the rule corrects stale gradients, and a worker's gradients are never stale on its "
            "own copy. Use the plain rule.",
        ),
        (
            synchronization in LOCAL and optimizer == "ftrl",
            "FTRL computes the weights from sums of its own and would undo every exchange. Use "
            "another rule.",
        ),
    ):
        if applies:
            raise OptionError(
                f"--optimizer {optimizer} and --synchronization {synchronization} do not go "
                f"together: {reason}"
            )


def check_restores(synchronization: str, saved: str) -> None:
    """Check that a run can go on with another synchronization than its checkpoint's.

    Args:
        synchronization: The value of ``--synchronization`` now.
        saved: That of the run that was saved.

    Raises:
        OptionError: If the checkpoint lacks variables.
    """
    missing = CHECKPOINTS.get(synchronization, {"weights"}) - CHECKPOINTS.get(saved, {"weights"})
    if missing:
        raise OptionError(
            f"--resume with --synchronization {synchronization} needs a checkpoint with "
            f"{' and '.join(sorted(missing))}, which one of --synchronization {saved} does not "
            f"have. Resume with --synchronization {saved}, or start a new run in another --run-dir."
        )
