"""The update rules in plain NumPy: what every optimizer and kernel is compared with.

Importing this package needs NumPy only.
"""

from deepinsight.trainer.rules.accumulation import (
    accumulated_mean,
    sparse_weighted_accumulation,
    staleness_weight,
    weighted_accumulation,
)
from deepinsight.trainer.rules.averaging import (
    block_momentum_step,
    eamsgd_step,
    elastic_exchange,
    elastic_round,
    sparse_elastic_exchange,
)
from deepinsight.trainer.rules.base import (
    adagrad_step,
    adam_step,
    gradient_descent_step,
    momentum_step,
    sparse_adagrad_step,
    sparse_adam_step,
    sparse_gradient_descent_step,
    sparse_momentum_step,
)
from deepinsight.trainer.rules.boosted import (
    boosted_adagrad_step,
    boosted_adam_step,
    boosted_gradient,
    boosted_gradient_descent_step,
    boosted_momentum_step,
)
from deepinsight.trainer.rules.delay_compensation import (
    adaptive_delay_compensated_step,
    delay_compensated_step,
    sparse_adaptive_delay_compensated_step,
    sparse_delay_compensated_step,
)
from deepinsight.trainer.rules.gradient_compression import (
    accumulate_for_compression,
    clip_local_gradient,
    scatter_gradient_descent_step,
    select_top_k,
    sparse_accumulate_for_compression,
)
from deepinsight.trainer.rules.kfac import (
    average_covariance,
    fisher_step_scale,
    invert_covariances,
    precondition,
    split_damping,
)
from deepinsight.trainer.rules.lars import (
    lars_step,
    sparse_lars_step,
)
from deepinsight.trainer.rules.sparse_boosted import (
    sparse_boosted_adagrad_step,
    sparse_boosted_adam_step,
    sparse_boosted_gradient_descent_step,
    sparse_boosted_momentum_step,
)
from deepinsight.trainer.rules.staleness_bounds import (
    accepts_gradient,
    clock_lead,
    joined_clock,
)

__all__ = [
    "accepts_gradient",
    "accumulate_for_compression",
    "accumulated_mean",
    "adagrad_step",
    "adam_step",
    "adaptive_delay_compensated_step",
    "average_covariance",
    "block_momentum_step",
    "boosted_adagrad_step",
    "boosted_adam_step",
    "boosted_gradient",
    "boosted_gradient_descent_step",
    "boosted_momentum_step",
    "clip_local_gradient",
    "clock_lead",
    "delay_compensated_step",
    "eamsgd_step",
    "elastic_exchange",
    "elastic_round",
    "fisher_step_scale",
    "gradient_descent_step",
    "invert_covariances",
    "joined_clock",
    "lars_step",
    "momentum_step",
    "precondition",
    "scatter_gradient_descent_step",
    "select_top_k",
    "sparse_accumulate_for_compression",
    "sparse_adagrad_step",
    "sparse_adam_step",
    "sparse_adaptive_delay_compensated_step",
    "sparse_boosted_adagrad_step",
    "sparse_boosted_adam_step",
    "sparse_boosted_gradient_descent_step",
    "sparse_boosted_momentum_step",
    "sparse_delay_compensated_step",
    "sparse_elastic_exchange",
    "sparse_gradient_descent_step",
    "sparse_lars_step",
    "sparse_momentum_step",
    "sparse_weighted_accumulation",
    "split_damping",
    "staleness_weight",
    "weighted_accumulation",
]
