"""The NumPy rules, with the state and the bookkeeping that an optimizer keeps for them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from deepinsight.trainer import keras as optimizers
from deepinsight.trainer import rules

RATE = 0.125  # exact in every dtype
AVERAGES = {"correlation": 0.0, "gradient_square": 0.0, "movement_square": 0.0}


@dataclass
class Case:
    """An optimizer, and its rule with the state at first, in the order of the rule's arguments."""

    optimizer: Callable[..., Any]
    rule: str
    state: dict[str, float | None]
    hyper: dict[str, Any]
    stale: bool = False
    own: tuple[str, ...] = ("backup",)
    powers: bool = False

    def make(self, **settings: Any) -> Any:
        return self.optimizer(RATE, **settings)


def _case(name: str, rule: str, state: dict[str, Any], hyper: Any, **keras_names: Any) -> Case:
    def make(rate: float, **settings: Any) -> Any:
        return getattr(optimizers, name)(rate, **(keras_names | settings))

    return Case(make, rule, state, hyper)


_BOOST = {"boost": 0.75, "staleness_scale": 3.0}
_WORKERS = {"backup": None}

CASES = {
    "dc_constant": _case(
        "DelayCompensatedGradientDescent",
        "delay_compensated_step",
        _WORKERS,
        {"variance_parameter": 0.5},
        variance_parameter=0.5,
    ),
    "dc_adaptive": _case(
        "DelayCompensatedGradientDescent",
        "adaptive_delay_compensated_step",
        _WORKERS | {"mean_square": 0.0},
        {"variance_parameter": 2.0, "decay": 0.9, "epsilon": 1e-3},
        adaptive=True,
        decay=0.9,
        epsilon=1e-3,
    ),
    "dc_adaptive_shared": _case(
        "DelayCompensatedGradientDescent",
        "adaptive_delay_compensated_step",
        _WORKERS | {"mean_square": 0.0},
        {"variance_parameter": 2.0},
        adaptive=True,
        shared_mean_square=True,
    ),
    "boosted_gradient_descent": _case(
        "BoostedGradientDescent",
        "boosted_gradient_descent_step",
        _WORKERS | AVERAGES,
        _BOOST | {"decay": 0.8, "epsilon": 1e-6},
        decay=0.8,
        correlation_epsilon=1e-6,
        **_BOOST,
    ),
    "boosted_momentum": _case(
        "BoostedMomentum",
        "boosted_momentum_step",
        {"velocity": 0.0, **_WORKERS, **AVERAGES},
        _BOOST | {"momentum": 0.75},
        momentum=0.75,
        **_BOOST,
    ),
    "boosted_nesterov": _case(
        "BoostedMomentum",
        "boosted_momentum_step",
        {"velocity": 0.0, **_WORKERS, **AVERAGES},
        _BOOST | {"momentum": 0.9, "use_nesterov": True},
        nesterov=True,
        **_BOOST,
    ),
    "boosted_adagrad": _case(
        "BoostedAdagrad",
        "boosted_adagrad_step",
        {"accum": 0.5, **_WORKERS, **AVERAGES},
        _BOOST | {"accum_epsilon": 1e-3},
        initial_accumulator_value=0.5,
        epsilon=1e-3,
        **_BOOST,
    ),
    "boosted_adam": _case(
        "BoostedAdam",
        "boosted_adam_step",
        {"m": 0.0, "v": 0.0, **_WORKERS, **AVERAGES},
        _BOOST | {"beta1": 0.8, "beta2": 0.99, "adam_epsilon": 1e-4},
        beta_1=0.8,
        beta_2=0.99,
        epsilon=1e-4,
        **_BOOST,
    ),
    "lars": _case(
        "LARS",
        "lars_step",
        {"velocity": 0.0},
        {"momentum": 0.75, "weight_decay": 0.01, "eeta": 0.02, "epsilon": 1e-5},
        momentum=0.75,
        weight_decay=0.01,
        eeta=0.02,
        epsilon=1e-5,
    ),
    "lars_nesterov": _case(
        "LARS",
        "lars_step",
        {"velocity": 0.0},
        {"eeta": 0.02, "use_nesterov": True},
        eeta=0.02,
        nesterov=True,
    ),
}
for name, case in CASES.items():
    case.stale = name.startswith("boosted")
    case.powers = name == "boosted_adam"
CASES["dc_adaptive"].own = ("backup", "mean_square")
WITH_WORKERS = [name for name in CASES if not name.startswith("lars")]


@dataclass
class Oracle:
    """One variable under a rule, pushed to by several workers."""

    case: Case
    param: np.ndarray
    workers: int
    storage: Any
    shared: dict[str, Any] = field(default_factory=dict)
    own: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        def start(names: Any) -> dict[str, Any]:
            fills = {n: self.case.state[n] for n in names}
            return {
                n: self.param.copy() if fill is None else np.full_like(self.param, fill)
                for n, fill in fills.items()
            }

        mine = [n for n in self.case.state if n in self.case.own]
        self.shared = start([n for n in self.case.state if n not in mine])
        self.own = [start(mine) for _ in range(self.workers)]
        self.pushes = 0
        self.seen = [0] * self.workers

    def step(self, worker: int, grad: np.ndarray, indices: np.ndarray | None = None) -> None:
        held = self.shared | self.own[worker]
        state = [held[name] for name in self.case.state]
        hyper = dict(self.case.hyper)
        if self.case.stale:
            hyper["staleness"] = self.pushes - self.seen[worker]
        self.pushes += 1
        self.seen[worker] = self.pushes
        if self.case.powers:
            hyper["beta1_power"] = hyper["beta1"] ** self.pushes
            hyper["beta2_power"] = hyper["beta2"] ** self.pushes
        rule = getattr(rules, self.case.rule if indices is None else f"sparse_{self.case.rule}")
        more = () if indices is None else (indices,)
        param, *new = rule(self.param, *state, grad, *more, learning_rate=RATE, **hyper)
        self.param = self._rounded(param)
        for name, value in zip(self.case.state, new, strict=False):
            target = self.own[worker] if name in self.own[worker] else self.shared
            target[name] = self._rounded(value) if name == "backup" else value

    def _rounded(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array).astype(self.storage).astype(self.param.dtype)


def numpy(variable: keras.Variable) -> np.ndarray:
    """A Keras variable's value, half types as float32."""
    array = variable.value.numpy()
    return array if array.dtype == np.float64 else array.astype(np.float32)
