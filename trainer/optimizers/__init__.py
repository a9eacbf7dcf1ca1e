"""How gradients reach the variables: the update rules, and where the gradients meet."""

from deepinsight.trainer.optimizers.accumulated import AccumulatedGradients
from deepinsight.trainer.optimizers.averaging.elastic_average import (
    ElasticAverageCustomGetter,
    ElasticAverageOptimizer,
)
from deepinsight.trainer.optimizers.averaging.model_average import (
    ModelAverageCustomGetter,
    ModelAverageOptimizer,
)
from deepinsight.trainer.optimizers.boosted import (
    BoostedAdagradOptimizer,
    BoostedAdamOptimizer,
    BoostedGradientDescentOptimizer,
    BoostedMomentumOptimizer,
)
from deepinsight.trainer.optimizers.compression.optimizer import (
    GradientCompressionOptimizer,
    push_compressed,
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
from deepinsight.trainer.optimizers.kfac.optimizer import DenseLayer, KFACOptimizer, sampled_loss
from deepinsight.trainer.optimizers.kfac.workers import dense_layers, kfac_roles, push_kfac
from deepinsight.trainer.optimizers.lars import LARSOptimizer
from deepinsight.trainer.optimizers.push import Push, push_async, push_sync
from deepinsight.trainer.optimizers.rules import create_rule
from deepinsight.trainer.optimizers.softsync.optimizer import SoftsyncOptimizer, push_softsync
from deepinsight.trainer.optimizers.staleness.bounded import BoundedStalenessOptimizer, push_bounded
from deepinsight.trainer.optimizers.staleness.drop_stale import (
    DropStaleGradientOptimizer,
    push_drop_stale,
)
from deepinsight.trainer.optimizers.sync_replicas.optimizer import SyncReplicasOptimizer
from deepinsight.trainer.optimizers.versions import UpdateCounts, Versions

__all__ = [
    "AccumulatedGradients",
    "BoostedAdagradOptimizer",
    "BoostedAdamOptimizer",
    "BoostedGradientDescentOptimizer",
    "BoostedMomentumOptimizer",
    "BoundedStalenessOptimizer",
    "DelayCompensatedGradientDescentOptimizer",
    "DenseLayer",
    "DropStaleGradientOptimizer",
    "ElasticAverageCustomGetter",
    "ElasticAverageOptimizer",
    "GradientAndVariable",
    "GradientCompressionOptimizer",
    "KFACOptimizer",
    "LARSOptimizer",
    "LeastLoaded",
    "ModelAverageCustomGetter",
    "ModelAverageOptimizer",
    "Pulled",
    "Push",
    "SoftsyncOptimizer",
    "SyncReplicasOptimizer",
    "UpdateCounts",
    "Versions",
    "create_rule",
    "dense_layers",
    "exchange_gradients",
    "kfac_roles",
    "pull",
    "push_async",
    "push_bounded",
    "push_compressed",
    "push_drop_stale",
    "push_kfac",
    "push_softsync",
    "push_sync",
    "sampled_loss",
]
