"""A plain tower over a fixed number of numeric inputs (1130-256-128-64-32-1 by default).

The categorical IDs of a data set become 0/1 inputs: each feature group has a run of columns, and
an ID switches the column ``ID modulo columns`` of its group on. Where all vocabularies fit, a
group has one column per ID (the columns left over belong to the last group and stay 0):
``digits``, with 8 x 136 = 1,088 IDs, is exactly one-hot in 1,130 columns. Otherwise the columns
are dealt out in proportion to the vocabularies, and IDs share columns.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from deepinsight.trainer.data.base import FeatureGroup
from deepinsight.trainer.errors import OptionError
from deepinsight.trainer.models.base import (
    FeatureGroups,
    Initializers,
    LayerTensors,
    Model,
    create_tower,
    tower_logits,
)


class Dense(Model):
    """The tower.

    Args:
        groups: The data set's feature groups.
        input_width: Number of input columns, at least one per group.
        hidden: Widths of the hidden layers.
        seed: Seed of the initial weights.
        devices: Per layer of the tower, the device that computes it; none: the worker does.
    """

    def __init__(
        self,
        groups: Sequence[FeatureGroup],
        input_width: int,
        hidden: Sequence[int],
        seed: int,
        devices: Sequence[str | None] = (),
    ) -> None:
        self._groups, self._width = groups, input_width
        self._columns = column_slices(groups, input_width)
        self.devices = tuple(devices) or (None,) * (len(hidden) + 1)
        self.dense = create_tower(input_width, hidden, Initializers(seed), self.devices)
        self.tables = {}

    def logits(
        self,
        ids: tf.Tensor,
        dense: Mapping[str, tf.Tensor],
        looked_up: dict[str, tf.Tensor] | None = None,
        layers: dict[str, LayerTensors] | None = None,
    ) -> tf.Tensor:
        """See `Model.logits`."""
        return tower_logits(self._encode(ids), dense, self.devices, layers)

    def _encode(self, ids: tf.Tensor) -> tf.Tensor:
        """The 0/1 inputs, float32 ``[n, input_width]``."""
        starts, sizes = [], []
        for group in self._groups:
            columns = self._columns[group.name]
            starts += [columns.start] * group.slots
            sizes += [columns.stop - columns.start] * group.slots
        rows = tf.shape(ids)[0]
        cells = ids % tf.constant(sizes) + tf.constant(starts)
        cells += tf.range(rows)[:, None] * self._width
        flat = tf.reshape(cells, [-1, 1])
        ones = tf.ones_like(flat[:, 0], tf.float32)
        counts = tf.scatter_nd(flat, ones, tf.expand_dims(rows * self._width, 0))
        return tf.minimum(tf.reshape(counts, [rows, self._width]), 1.0)

    def feature_groups(self) -> FeatureGroups:
        """Input columns per group: rows of fc1/kernel."""
        return {name: {"fc1/kernel": columns} for name, columns in self._columns.items()}


def column_slices(groups: Sequence[FeatureGroup], width: int) -> dict[str, slice]:
    """Deal input columns out to feature groups.

    Args:
        groups: The feature groups.
        width: Number of columns.

    Returns:
        The columns of each group. They cover ``0 … width - 1`` in the order of the groups. Where
        the vocabularies fit into `width`, each group has at least as many columns as IDs.

    Raises:
        OptionError: If there are fewer columns than groups.
    """
    if width < len(groups):
        raise OptionError(
            f"--input-width must be at least the number of feature groups, {len(groups)}. "
            f"Received: {width}."
        )
    total = sum(group.vocabulary for group in groups)
    spare = width - len(groups)
    slices, seen, start = {}, 0, 0
    for i, group in enumerate(groups):
        seen += group.vocabulary
        stop = i + 1 + seen * spare // total if total > width else start + group.vocabulary
        stop = width if i == len(groups) - 1 else stop
        slices[group.name] = slice(start, stop)
        start = stop
    return slices
