r"""Wide and deep: embeddings summed within each feature group, a tower, and a linear part.

.. math:: logit = tower([e_1, …, e_G]) + b + \sum_g \sum_{slots} w_g[x], \quad
          e_g = \sum_{slots} E_g[x]

with one table :math:`E_g` (``embedding/<group>``, ``[vocabulary, dim]``) and one column of weights
:math:`w_g` (``wide/<group>``, ``[vocabulary, 1]``) per feature group.

Cheng et al., 2016, Wide & Deep Learning for Recommender Systems. arXiv:1606.07792.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from deepinsight.trainer.data.base import FeatureGroup
from deepinsight.trainer.devices import by_device
from deepinsight.trainer.models.base import (
    FeatureGroups,
    Initializers,
    LayerTensors,
    Model,
    create_tower,
    create_variable,
    tower_logits,
)

EMBEDDING_STDDEV = 0.05


class WideDeep(Model):
    """The model; rows are looked up and summed on the device that holds the table.

    So what travels per step is ``[n, groups * dim + 1]`` per parameter server, however many slots
    a group has.

    Args:
        groups: The data set's feature groups.
        dim: Width of the embeddings.
        hidden: Widths of the tower's hidden layers.
        seed: Seed of the initial weights.
        devices: Per layer of the tower, the device that computes it; none: the worker does.
    """

    def __init__(
        self,
        groups: Sequence[FeatureGroup],
        dim: int,
        hidden: Sequence[int],
        seed: int,
        devices: Sequence[str | None] = (),
    ) -> None:
        self._groups, self._dim = groups, dim
        self.devices = tuple(devices) or (None,) * (len(hidden) + 1)
        initializers = Initializers(seed)
        self.tables = {}
        for group in groups:
            for part, width, initializer in (
                ("embedding", dim, initializers.normal(EMBEDDING_STDDEV)),
                ("wide", 1, initializers.zeros()),
            ):
                name = f"{part}/{group.name}"
                self.tables[name] = create_variable(name, [group.vocabulary, width], initializer)
        # The tower's output bias is the bias of the whole model.
        self.dense = create_tower(len(groups) * dim, hidden, initializers, self.devices)

    def logits(
        self,
        ids: tf.Tensor,
        dense: Mapping[str, tf.Tensor],
        looked_up: dict[str, tf.Tensor] | None = None,
        layers: dict[str, LayerTensors] | None = None,
    ) -> tf.Tensor:
        """See `Model.logits`."""
        sums = self._group_sums(ids, {} if looked_up is None else looked_up)
        embedded = tf.concat([sums[f"embedding/{g.name}"] for g in self._groups], axis=1)
        wide = tf.add_n([sums[f"wide/{g.name}"] for g in self._groups])
        tower = tower_logits(embedded, dense, self.devices, layers)
        return tower + tf.squeeze(wide, axis=1)

    def _group_sums(self, ids: tf.Tensor, looked_up: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Per table the sum of its rows over the group's slots, ``[n, width]``."""
        columns, start = {}, 0
        for group in self._groups:
            columns[group.name] = slice(start, start + group.slots)
            start += group.slots
        sums = {}
        for device, names in by_device(self.tables).items():
            with tf.device(device):
                widths = [int(self.tables[name].shape[1]) for name in names]
                parts = []
                for name, width in zip(names, widths, strict=True):
                    rows = tf.gather(self.tables[name], ids[:, columns[name.split("/", 1)[1]]])
                    looked_up[name] = tf.reshape(rows, [-1, width])
                    parts.append(tf.reduce_sum(rows, axis=1))
                together = tf.concat(parts, axis=1)
            sums.update(zip(names, tf.split(together, widths, axis=1), strict=True))
        return sums

    def feature_groups(self) -> FeatureGroups:
        """Whole tables per group, and the group's rows of fc1/kernel."""
        dim = self._dim
        return {
            group.name: {
                f"embedding/{group.name}": slice(None),
                f"wide/{group.name}": slice(None),
                "fc1/kernel": slice(i * dim, (i + 1) * dim),
            }
            for i, group in enumerate(self._groups)
        }
