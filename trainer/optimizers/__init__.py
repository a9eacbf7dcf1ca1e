"""How gradients reach the variables: the update rules, and where the gradients meet."""

from deepinsight.trainer.optimizers.accumulated import AccumulatedGradients
from deepinsight.trainer.optimizers.boosted import (
    BoostedAdagradOptimizer,
    BoostedAdamOptimizer,
    BoostedGradientDescentOptimizer,
    BoostedMomentumOptimizer,
)
from deepinsight.trainer.optimizers.delay_compensated import (
    DelayCompensatedGradientDescentOptimizer,
)
from deepinsight.trainer.optimizers.exchange import (
    GradientAndVariable,
    LeastLoaded,
    Pulled,
    exchange_gradients,
    pull,
)
from deepinsight.trainer.optimizers.lars import LARSOptimizer
from deepinsight.trainer.optimizers.push import Push, push_async, push_sync
from deepinsight.trainer.optimizers.rules import create_rule
from deepinsight.trainer.optimizers.versions import UpdateCounts, Versions

__all__ = [
    "AccumulatedGradients",
    "BoostedAdagradOptimizer",
    "BoostedAdamOptimizer",
    "BoostedGradientDescentOptimizer",
    "BoostedMomentumOptimizer",
    "DelayCompensatedGradientDescentOptimizer",
    "GradientAndVariable",
    "LARSOptimizer",
    "LeastLoaded",
    "Pulled",
    "Push",
    "UpdateCounts",
    "Versions",
    "create_rule",
    "exchange_gradients",
    "pull",
    "push_async",
    "push_sync",
]
