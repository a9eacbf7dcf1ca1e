"""Variables of which every worker has a copy of its own, beside a global one.

A custom getter makes both where a model asks for one: the local copy on the worker, which is
trained, and the global copy on a parameter server, which is saved. What travels between them is
packed: one vector per server, dtype and direction.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from deepinsight.trainer.optimizers._apply import compute_dtype
from deepinsight.trainer.optimizers.exchange import _pack, _unpack

v1 = tf.compat.v1

#: Name scope of the global copies: the copy of ``w`` is ``global_center_variable/w``.
GLOBAL_VARIABLE_NAME = "global_center_variable"
#: A message stays below this, so that no tensor reaches the 2 GiB that gRPC can carry.
LARGEST_BYTES = 2**28


class VariableMap(Mapping[tf.Variable, tf.Variable]):
    """A read-only mapping from variables to variables, in the order in which they were made."""

    def __init__(self) -> None:
        self._entries: dict[Any, tuple[tf.Variable, tf.Variable]] = {}

    def add(self, variable: tf.Variable, other: tf.Variable) -> None:
        """Enter a variable."""
        self._entries[variable.ref()] = (variable, other)

    def __getitem__(self, variable: tf.Variable) -> tf.Variable:
        return self._entries[variable.ref()][1]

    def __contains__(self, variable: object) -> bool:
        return isinstance(variable, tf.Variable) and variable.ref() in self._entries

    def __iter__(self) -> Iterator[tf.Variable]:
        return iter([variable for variable, _ in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)


class LocalCopiesGetter:
    """A custom getter for ``tf.compat.v1.variable_scope``: trainable variables become local.

    A trainable variable that the model asks for with ``tf.compat.v1.get_variable`` is made on the
    worker, in the collections LOCAL_VARIABLES and TRAINABLE_VARIABLES, under its own name. Its
    global copy ``global_center_variable/<name>`` is placed by the device scope around, in general
    a `tf.compat.v1.train.replica_device_setter`, and belongs to GLOBAL_VARIABLES. All of them are
    resource variables. Other variables are left as they are.

    Args:
        worker_device: Device of this worker, such as ``"/job:worker/task:1"``.

    Attributes:
        worker_device: As given.
        global_variables: The global copy of each local variable.
    """

    def __init__(self, worker_device: str) -> None:
        self.worker_device = worker_device
        self.global_variables = VariableMap()

    @property
    def _local_2_global(self) -> Mapping[tf.Variable, tf.Variable]:
        """The name in TensorFlow 1.15, which its tests and some scripts use."""
        return self.global_variables

    def __call__(
        self,
        getter: Callable[..., tf.Variable],
        name: str,
        trainable: bool | None = None,
        collections: Sequence[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tf.Variable:
        """Make a variable, or find it again; see the class.

        Raises:
            ValueError: If a trainable variable is to be partitioned.
        """
        if trainable is None:
            trainable = kwargs.get("synchronization") != tf.VariableSynchronization.ON_READ
        if not trainable:
            return getter(name, *args, trainable=False, collections=collections, **kwargs)
        if kwargs.get("partitioner") is not None:
            raise ValueError(
                "`partitioner` must be None where workers have local copies. Received: "
                f"{kwargs['partitioner']!r} for {name!r}; give the scope no partitioner."
            )
        own = [c for c in collections or () if c != v1.GraphKeys.GLOBAL_VARIABLES]
        kwargs["use_resource"] = True
        with tf.device(self.worker_device):
            local = getter(
                name,
                *args,
                trainable=True,
                collections=[v1.GraphKeys.LOCAL_VARIABLES, *own],
                **kwargs,
            )
        if local not in self.global_variables:
            # Names must be the same on every worker, whatever scopes are open.
            with v1.name_scope(None):
                self._copy(name, local)
        return local

    def _copy(self, name: str, local: tf.Variable) -> None:
        """Make the global copy of a new local variable, in the device scope of the caller."""
        copy = like(
            local, f"{GLOBAL_VARIABLE_NAME}/{name}", collections=[v1.GraphKeys.GLOBAL_VARIABLES]
        )
        self.global_variables.add(local, copy)


def like(variable: tf.Variable, name: str, collections: Sequence[str]) -> tf.Variable:
    """A variable that begins as another does, not trainable, in the device scope."""
    return v1.Variable(
        variable.initial_value,
        trainable=False,
        collections=list(collections),
        name=name,
        dtype=variable.dtype.base_dtype,
        use_resource=True,
    )


def place_of_worker(index: int | None, worker_device: str, workers: int, is_chief: bool) -> int:
    """The place of a worker among all: as given, or else the task number of its device.

    Args:
        index: As given, or None.
        worker_device: The device.
        workers: Number of workers.
        is_chief: Whether it is the chief.

    Raises:
        ValueError: If the index is out of range, or None and the device has no such number, or one
            that may be another worker's, too.
    """
    if index is not None:
        if not 0 <= index < workers:
            raise ValueError(
                f"`worker_index` must be in [0, {workers}). Received: worker_index={index!r}."
            )
        return index
    spec = tf.DeviceSpec.from_string(worker_device)
    if workers == 1:
        return 0
    # With a job of its own for the chief, its task and the first worker's are both 0.
    shared = spec.job in ("chief", "master") or (spec.task == 0 and not is_chief)
    if spec.task is None or not spec.task < workers or shared:
        raise ValueError(
            "`worker_device` must say by its task number which of the workers this is: "
            f"0 for the chief … {workers - 1}. Received: {worker_device!r}, "
            f"is_chief={is_chief}; pass worker_index=… ."
        )
    return int(spec.task)


class Group(NamedTuple):
    """Variables whose values travel together.

    Attributes:
        device: Where the global copies are.
        dtype: Their dtype.
        places: Which of all the variables they are.
        size: Elements of all of them.
    """

    device: str
    dtype: tf.DType
    places: list[int]
    size: int


def group_variables(variables: Sequence[tf.Variable]) -> list[Group]:
    """Group variables by device and dtype, into groups below `LARGEST_BYTES` where possible.

    Args:
        variables: Global copies, of fixed shapes.
    """
    groups: list[Group] = []
    current: dict[tuple[str, tf.DType], int] = {}
    for place, variable in enumerate(variables):
        key = (variable.device, variable.dtype.base_dtype)
        size = int(np.prod(variable.shape.as_list(), dtype=np.int64))
        found = current.get(key)
        if found is not None and (groups[found].size + size) * key[1].size <= LARGEST_BYTES:
            group = groups[found]
            groups[found] = group._replace(places=[*group.places, place], size=group.size + size)
        else:
            current[key] = len(groups)
            groups.append(Group(*key, [place], size))
    return groups


def pack_group(group: Group, values: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
    """The values of a group as one vector, in the device scope.

    Args:
        group: The group.
        values: Tensors, or variables to read, of all the variables.
    """
    return _pack([_value(values[place]) for place in group.places])


def unpack_group(
    group: Group, packed: tf.Tensor, variables: Sequence[tf.Variable]
) -> dict[int, tf.Tensor]:
    """The values in a group's vector by the variables' places, in the device scope.

    Args:
        group: The group.
        packed: The vector.
        variables: All the variables.
    """
    parts = _unpack(packed, [variables[place] for place in group.places])
    return dict(zip(group.places, parts, strict=True))


def read_global(groups: Sequence[Group], variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Read global copies and bring them to the device of the scope, one message per group.

    Args:
        groups: `group_variables` of them.
        variables: The global copies.

    Returns:
        Their values, in the order of the variables.
    """
    values: dict[int, tf.Tensor] = {}
    for group in groups:
        with tf.device(group.device):
            packed = pack_group(group, variables)
        values.update(unpack_group(group, packed, variables))
    return [values[place] for place in range(len(variables))]


def check_copies(global_variables: Mapping[tf.Variable, tf.Variable]) -> None:
    """Check that local copies can be averaged.

    Raises:
        ValueError: If there are none, or one is of no floating dtype or has no fixed shape.
    """
    if not global_variables:
        raise ValueError(
            "There must be a trainable variable with a global copy. Received: none; create the "
            "model with tf.compat.v1.get_variable in a variable_scope with the custom getter."
        )
    for variable in global_variables:
        if not variable.dtype.is_floating or not variable.shape.is_fully_defined():
            raise ValueError(
                "A trainable variable must have a floating dtype and a fixed shape. Received: "
                f"{variable.dtype.base_dtype.name} {variable.shape} for {variable.name!r}; "
                "create it with trainable=False if it is not to be averaged."
            )


def sum_of_squares(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of the squares of all elements, float64 scalar."""
    wide = [tf.cast(tensor, compute_dtype(tensor.dtype)) for tensor in tensors]
    return tf.add_n([tf.cast(tf.reduce_sum(part * part), tf.float64) for part in wide])


def _value(value: tf.Tensor | tf.Variable) -> tf.Tensor:
    return value.read_value() if isinstance(value, tf.Variable) else value
