"""What the boosted optimizers share: the boost of the gradient, before the base rule."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from deepinsight.trainer.keras import _checks
from deepinsight.trainer.keras._base import NON_FINITE, Quantity
from deepinsight.trainer.keras._workers import WorkerOptimizer


class Boosted(WorkerOptimizer):
    """A `WorkerOptimizer` whose kernel boosts the gradient before the base rule.

    Args:
        learning_rate: A number > 0, a schedule or a callable.
        num_workers: Number of workers that push, >= 1.
        boost: In [0, 1).
        staleness_scale: > 0, updates.
        decay: In [0, 1).
        correlation_epsilon: > 0.
        **settings: Arguments of ``keras.optimizers.Optimizer``.
    """

    QUANTITIES = (
        Quantity("correlation", "Mean correlation of the gradient with the variable's movement."),
        Quantity(
            "compensation_ratio",
            "Sum of the absolute change of the gradient over the sum of the absolute gradient.",
        ),
        NON_FINITE,
    )

    def __init__(
        self,
        learning_rate: Any,
        num_workers: int,
        boost: float,
        staleness_scale: float,
        decay: float,
        correlation_epsilon: float,
        **settings: Any,
    ) -> None:
        super().__init__(learning_rate, num_workers, **settings)
        self.boost = _checks.share("boost", boost)
        self.staleness_scale = _checks.positive("staleness_scale", staleness_scale)
        self.decay = _checks.share("decay", decay)
        self.correlation_epsilon = _checks.positive("correlation_epsilon", correlation_epsilon)

    def _initial_slots(self) -> Mapping[str, float]:
        return {"correlation": 0.0, "gradient_square": 0.0, "movement_square": 0.0}

    def _hyperparameters(self, dtype: tf.DType) -> Mapping[str, Any]:
        return {
            "boost": self.boost,
            "staleness": self._staleness(),
            "staleness_scale": self.staleness_scale,
            "decay": self.decay,
            "epsilon": self.correlation_epsilon,
        }

    def get_config(self) -> dict[str, Any]:
        """The arguments to make this optimizer again, without its state."""
        return super().get_config() | {
            "boost": self.boost,
            "staleness_scale": self.staleness_scale,
            "decay": self.decay,
            "correlation_epsilon": self.correlation_epsilon,
        }
