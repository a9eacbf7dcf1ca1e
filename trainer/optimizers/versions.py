r"""Update counts, read at the pull and raised at the push: the exact staleness of every push.

The global step counts the updates of the model; one counter per variable, on the variable's own
device, counts the updates of that variable. A worker reads the counts before it reads any
variable, and raises them after its gradients have been applied:

.. math:: \tau = count_{before\ own\ update} - count_{at\ pull}

Raising is one atomic fetch-and-add: ``ResourceCountUpTo`` returns the value before the increment,
under the variable's lock, so that of two pushes at the same moment each has a number of its own.
(``Optimizer.apply_gradients(global_step=…)`` adds without returning, and a read beside it may
see the other worker's update.) A pull that begins after another's update has been applied, but
before it has been counted, reads the new weights under the old count; the two follow each other
directly on the server, so this window is microseconds, and it never counts too little.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from deepinsight.trainer.devices import by_device

NO_LIMIT = 2**62  # ResourceCountUpTo wants a limit; at 10^6 updates/s this is 146,000 years
v1 = tf.compat.v1


class Versions(NamedTuple):
    """Update counts, each tensor on the device where it was counted.

    Attributes:
        overall: The global step, int64 scalar.
        variables: Per device, the counts of its variables, int64 ``[variables on the device]``.
    """

    overall: tf.Tensor
    variables: dict[str, tf.Tensor]

    def tensors(self) -> list[tf.Tensor]:
        """All tensors, for control dependencies."""
        return [self.overall, *self.variables.values()]

    def since(self, earlier: "Versions") -> "Versions":
        """The differences to earlier counts, computed where the counts are."""
        with tf.device(self.overall.device):
            overall = self.overall - earlier.overall
        variables = {}
        for device, counts in self.variables.items():
            with tf.device(device):
                variables[device] = counts - earlier.variables[device]
        return Versions(overall, variables)


class UpdateCounts:
    """The counters of a set of variables, and the global step, in the default graph.

    Args:
        variables: The variables by name. Make them first: the counters follow their devices.
        global_step: The graph's global step.
    """

    def __init__(self, variables: Mapping[str, tf.Variable], global_step: tf.Variable) -> None:
        self._variables, self.global_step = dict(variables), global_step
        self._names = by_device(self._variables)
        self._counters = {}
        for name, variable in self._variables.items():
            with tf.device(variable.device):
                self._counters[name] = v1.get_variable(
                    f"updates/{name}",
                    [],
                    tf.int64,
                    initializer=v1.zeros_initializer(),
                    trainable=False,
                    use_resource=True,
                )

    @property
    def labels(self) -> list[str]:
        """The names of the variables in the order of `Versions.variables`, device by device."""
        return [name for names in self._names.values() for name in names]

    def read(self) -> Versions:
        """Read all counts, the global step first, under the scope's control dependencies."""
        with tf.device(self.global_step.device):
            overall = self.global_step.read_value()
        variables = {}
        with tf.control_dependencies([overall]):
            for device, names in self._names.items():
                with tf.device(device):
                    variables[device] = tf.stack([self._counters[n].read_value() for n in names])
        return Versions(overall, variables)

    def staleness(
        self, pulled: Versions, gradients: Mapping[str, tf.Tensor | tf.IndexedSlices]
    ) -> dict[str, tf.Tensor]:
        """Per variable, its updates since the pull, when its gradient is about to be applied.

        Args:
            pulled: The counts at the pull.
            gradients: The gradients by the variables' names.

        Returns:
            int64 scalars by name, each on the variable's device.
        """
        staleness = {}
        for device, names in self._names.items():
            with tf.device(device):
                then = tf.unstack(pulled.variables[device], len(names))
                for name, before in zip(names, then, strict=True):
                    gradient = gradients[name]
                    arrived = (
                        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
                    )
                    with tf.control_dependencies([arrived]):
                        staleness[name] = self._counters[name].read_value() - before
        return staleness

    def raise_after(self, updates: Sequence[tf.Operation], everything: tf.Operation) -> Versions:
        """Raise every count by one, and return what each was before.

        Args:
            updates: Ops among which those are that update the variables.
            everything: The op that ends when all variables are up to date.

        Returns:
            The counts before. A variable's counter is raised directly after its update, the
            global step after everything.
        """
        variables, before = {}, {}
        for name, variable in self._variables.items():
            after = updating(variable, updates)
            with tf.device(variable.device), tf.control_dependencies(after):
                before[name] = _fetch_and_add(self._counters[name])
        for device, names in self._names.items():
            with tf.device(device):
                variables[device] = tf.stack([before[name] for name in names])
        with (
            tf.device(self.global_step.device),
            tf.control_dependencies([everything, *before.values()]),
        ):
            overall = _fetch_and_add(self.global_step)
        return Versions(overall, variables)


def updating(variable: tf.Variable, ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """The ops among `ops` that write to a resource variable, in a branch of a `tf.cond` too.

    Raises:
        ValueError: If there is none: its update could not be counted.
    """
    writes = ("ResourceApply", "ResourceSparseApply", "ResourceScatter", "Assign")
    found = [
        op
        for op in ops
        if op.type.startswith(writes) and any(_source(t) is variable.handle for t in op.inputs)
    ]
    if not found:
        raise ValueError(
            f"The update rule must write to every variable with one of the ops "
            f"{', '.join(writes)}…, so that its updates can be counted. Received: none for "
            f"{variable.name!r} among {len(ops)} ops."
        )
    return found


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that a branch of a `tf.cond` has from outside; any other one itself."""
    while True:
        if tensor.op.type == "Switch":
            tensor = tensor.op.inputs[0]
        elif tensor.op.type == "Placeholder" and hasattr(tensor.graph, "captures"):
            outside = [outer for outer, inner in tensor.graph.captures if inner is tensor]
            if not outside:
                return tensor
            (tensor,) = outside
        else:
            return tensor


def _fetch_and_add(counter: tf.Variable) -> tf.Tensor:
    return tf.raw_ops.ResourceCountUpTo(resource=counter.handle, limit=NO_LIMIT, T=tf.int64)
