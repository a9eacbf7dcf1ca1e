"""The custom getter of elastic averaging."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers.averaging.local_copies import (
    GLOBAL_VARIABLE_NAME,
    LocalCopiesGetter,
)

v1 = tf.compat.v1


class ElasticAverageCustomGetter(LocalCopiesGetter):
    """A custom getter for ``tf.compat.v1.variable_scope``: workers train variables of their own.

    A trainable variable that the model asks for with ``tf.compat.v1.get_variable`` is made on the
    worker, in the collections LOCAL_VARIABLES and TRAINABLE_VARIABLES, under its own name. Its
    centre, ``global_center_variable/<name>``, is placed by the device scope around, in general a
    `tf.compat.v1.train.replica_device_setter`, and belongs to GLOBAL_VARIABLES: it is what
    checkpoints hold. Of a partitioned variable, each part has a centre. All of them are resource
    variables. Other variables of the collection LOCAL_VARIABLES are made on the worker, too; what
    remains is left as it is.

    Args:
        worker_device: Device of this worker, such as ``"/job:worker/task:1"``.

    Attributes:
        worker_device: As given.
        global_variables: The centre of each worker's variable.

    Example:
        >>> with tf.Graph().as_default():
        ...     getter = ElasticAverageCustomGetter(worker_device="/device:CPU:0")
        ...     with tf.compat.v1.variable_scope("", custom_getter=getter):
        ...         w = tf.compat.v1.get_variable("w", [2])
        ...     print(w.name, getter.global_variables[w].name)
        w:0 global_center_variable/w:0
    """

    @property
    def _global_map(self) -> Mapping[tf.Variable, tf.Variable]:
        """The name in TensorFlow 1.15, which its tests and some scripts use."""
        return self.global_variables

    def __call__(
        self,
        getter: Callable[..., Any],
        name: str,
        trainable: bool | None = None,
        collections: Sequence[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Make a variable, or find it again; see the class."""
        if trainable is False and v1.GraphKeys.LOCAL_VARIABLES in (collections or ()):
            with tf.device(self.worker_device):
                return super().__call__(getter, name, trainable, collections, *args, **kwargs)
        if kwargs.get("partitioner") is None or trainable is False:
            return super().__call__(getter, name, trainable, collections, *args, **kwargs)
        own = [c for c in collections or () if c != v1.GraphKeys.GLOBAL_VARIABLES]
        with tf.device(self.worker_device):
            local = getter(
                name,
                *args,
                trainable=True,
                collections=[v1.GraphKeys.LOCAL_VARIABLES, *own],
                **{**kwargs, "use_resource": True},
            )
        parts = [local] if isinstance(local, tf.Variable) else list(local)
        for part in parts:
            if part not in self.global_variables:
                with v1.name_scope(None):
                    self._copy(part.op.name, part)
                _copy_slice(part, self.global_variables[part])
        return local


def _copy_slice(part: tf.Variable, center: tf.Variable) -> None:
    """Let a part's centre be saved as the same slice of the whole centre."""
    place = part._get_save_slice_info()
    if place is not None:
        whole = f"{GLOBAL_VARIABLE_NAME}/{place.full_name}"
        center._set_save_slice_info(
            tf.Variable.SaveSliceInfo(whole, place.full_shape, place.var_offset, place.var_shape)
        )
