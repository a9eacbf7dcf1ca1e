"""What elastic averaging accepts as arguments."""

import math
import numbers
from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers._arguments import check_optimizer
from deepinsight.trainer.optimizers.averaging.local_copies import LocalCopiesGetter

v1 = tf.compat.v1
# Their weights are a function of the sums that they keep.
_DUAL = (v1.train.FtrlOptimizer, v1.train.AdagradDAOptimizer)


def check_base(opt: Any) -> None:
    """Check that an optimizer's variables can be exchanged.

    Raises:
        ValueError: If it is no optimizer, or one that would undo every exchange.
    """
    check_optimizer("opt", opt)
    if isinstance(opt, _DUAL):
        raise ValueError(
            "`opt` must change the variables that it finds. Received: "
            f"{type(opt).__name__}, which computes them from sums of its own and would undo every "
            "exchange; take another."
        )


def check_getter(getter: Any) -> None:
    """Check that it makes variables with centres.

    Raises:
        ValueError: If not.
    """
    if not isinstance(getter, LocalCopiesGetter):
        raise ValueError(
            "`ea_custom_getter` must be the ElasticAverageCustomGetter with which the model's "
            f"variables were made. Received: {getter!r}."
        )


def number(name: str, value: Any, most: float) -> float:
    """Return a finite number in [0, `most`].

    Raises:
        ValueError: If it is none.
    """
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, numbers.Real) or not 0 <= value <= most or math.isinf(value):
        words = f">= 0 and <= {most:g}" if math.isfinite(most) else "finite and >= 0"
        raise ValueError(f"`{name}` must be {words}. Received: {name}={value!r}.")
    return float(value)


def learning_rate(opt: v1.train.Optimizer) -> Any:
    """The learning rate of an optimizer, to divide by: a number or a tensor.

    Raises:
        ValueError: If it does not reveal one, or it is not > 0.
    """
    hyper = getattr(opt, "_hyper", {})
    candidates = (getattr(opt, "_learning_rate", None), getattr(opt, "_lr", None),
                  hyper.get("learning_rate"))  # fmt: skip
    rate = next((candidate for candidate in candidates if candidate is not None), None)
    rate = rate() if callable(rate) else rate
    if rate is None or (isinstance(rate, numbers.Real) and not rate > 0):
        raise ValueError(
            "`rho` must be given where `opt` has no learning rate > 0 to derive it from. Received: "
            f"rho=None, opt={type(opt).__name__} with learning rate {rate!r}; pass rho=0 for no "
            "penalty."
        )
    return rate
