"""The NumPy rules, with the state that an optimizer keeps for them, worker by worker."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepinsight.trainer import optimizers, rules

RATE = 0.125  # exact in every dtype
WORKERS = 3
AVERAGES = {"correlation": 0.0, "gradient_square": 0.0, "movement_square": 0.0}
BOOST = {"boost": 0.75, "staleness_scale": 3.0, "decay": 0.8}


@dataclass
class Case:
    """An optimizer; its rule, the state of the rule in its order, and its hyperparameters."""

    make: Callable[..., Any]
    rule: str
    state: dict[str, float | None]  # None: as the variable
    hyper: dict[str, Any]
    own: tuple[str, ...] = ("backup",)  # slots of which each worker has one
    stale: bool = False
    powers: bool = False


def _dc(rule, state, own=("backup",), **settings):
    settings = {"variance_parameter": 0.5} | settings
    shown = {k: v for k, v in settings.items() if k not in ("adaptive", "shared_mean_square")}

    def make(rate=RATE, num_workers=WORKERS):
        return optimizers.DelayCompensatedGradientDescentOptimizer(
            rate, num_workers=num_workers, **settings
        )

    return Case(make, rule, {"backup": None} | state, shown, own)


def _boosted(name, rule, slots, arguments=(), extra=None, hyper=None, powers=False):
    def make(rate=RATE, num_workers=WORKERS, **more):
        kind = getattr(optimizers, name)
        return kind(rate, *arguments, num_workers=num_workers, **(BOOST | (extra or {}) | more))

    state = slots | {"backup": None} | AVERAGES
    return Case(make, rule, state, BOOST | (hyper or {}), stale=True, powers=powers)


CASES = {
    "dc": _dc("delay_compensated_step", {}),
    "dc_adaptive": _dc(
        "adaptive_delay_compensated_step",
        {"mean_square": 0.0},
        ("backup", "mean_square"),
        adaptive=True,
        decay=0.9,
        epsilon=1e-3,
    ),
    "dc_adaptive_shared": _dc(
        "adaptive_delay_compensated_step",
        {"mean_square": 0.0},
        adaptive=True,
        shared_mean_square=True,
        decay=0.9,
        epsilon=1e-3,
    ),
    "boosted_gradient_descent": _boosted(
        "BoostedGradientDescentOptimizer", "boosted_gradient_descent_step", {}
    ),
    "boosted_momentum": _boosted(
        "BoostedMomentumOptimizer",
        "boosted_momentum_step",
        {"momentum": 0.0},
        (0.5,),
        hyper={"momentum": 0.5},
    ),
    "boosted_nesterov": _boosted(
        "BoostedMomentumOptimizer",
        "boosted_momentum_step",
        {"momentum": 0.0},
        (0.5,),
        {"use_nesterov": True},
        {"momentum": 0.5, "use_nesterov": True},
    ),
    "boosted_adagrad": _boosted(
        "BoostedAdagradOptimizer",
        "boosted_adagrad_step",
        {"accumulator": 0.25},
        (0.25,),
        hyper={"accum_epsilon": 1e-7},
    ),
    "boosted_adam": _boosted(
        "BoostedAdamOptimizer",
        "boosted_adam_step",
        {"m": 0.0, "v": 0.0},
        (0.5, 0.75, 1e-3),
        hyper={"beta1": 0.5, "beta2": 0.75, "adam_epsilon": 1e-3},
        powers=True,
    ),
}


class Reference:
    """One variable under a rule, pushed to by workers that pull right after their pushes."""

    def __init__(self, case, value, workers=WORKERS):
        self.case, self.value, self.pushes = case, value.copy(), 0
        self.missed = [0] * workers
        self.slots = {
            self.slot(name, worker): value.copy() if first is None else np.full_like(value, first)
            for name, first in case.state.items()
            for worker in range(workers)
        }

    def slot(self, name, worker):
        return f"{name}_{worker}" if name in self.case.own else name

    def push(self, worker, grad, indices=None):
        rule = getattr(rules, self.case.rule if indices is None else f"sparse_{self.case.rule}")
        names = [self.slot(name, worker) for name in self.case.state]
        hyper = dict(self.case.hyper, learning_rate=RATE)
        if self.case.stale:
            hyper["staleness"] = self.missed[worker]
        self.pushes += 1
        if self.case.powers:
            hyper["beta1_power"] = hyper["beta1"] ** self.pushes
            hyper["beta2_power"] = hyper["beta2"] ** self.pushes
        state = [self.slots[name] for name in names]
        where = () if indices is None else (indices,)
        self.value, *state = rule(self.value, *state, grad, *where, **hyper)
        self.slots |= dict(zip(names, state, strict=True))
        self.missed = [0 if i == worker else m + 1 for i, m in enumerate(self.missed)]
