"""What an optimizer knows about its update, offered to the session hook."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor, traced_tensors
from deepinsight.traces import Axis, stream_name
from deepinsight.trainer.devices import by_device

v1 = tf.compat.v1


class Statistic(NamedTuple):
    """One number of a kernel's statistics vector.

    Attributes:
        column: Where it stands in the vector.
        name: Last part of the stream's name.
        unit: Unit of the stream.
        description: One sentence.
    """

    column: int
    name: str
    unit: str
    description: str


class Report(NamedTuple):
    """The statistics of the variables of one device.

    Attributes:
        order: Places of the variables among all, in the order of the gradients.
        names: Names of the variables.
        values: The kernels' statistics, float64 ``[variables, statistics]``, on the device.
    """

    order: list[int]
    names: list[str]
    values: tf.Tensor


def report(statistics: Sequence[tuple[tf.Variable, tf.Tensor]]) -> list[Report]:
    """Stack the statistics of each device there, so that one small tensor leaves it."""
    numbered = {str(i): variable for i, (variable, _) in enumerate(statistics)}
    reports = []
    for device, keys in by_device(numbered).items():
        order = [int(key) for key in keys]
        with tf.device(device):
            values = tf.stack([statistics[i][1] for i in order])
        names = [stream_name(statistics[i][0].name) for i in order]
        reports.append(Report(order, names, values))
    return reports


def keep(update: tf.Operation, reports: Sequence[Report]) -> tuple[tf.Operation, list[Report]]:
    """Keep the statistics in variables, to be read at any time.

    For updates that are not made in the training step: what fetches a statistic itself would make
    the update once more. They are NaN until there was an update, and part of checkpoints.

    Returns:
        The update, which ends when they are kept, and the reports as kept.
    """
    done, kept = [update], []
    for part in reports:
        with tf.device(part.values.device):
            nothing = tf.fill(part.values.shape, tf.constant(float("nan"), part.values.dtype))
            variable = v1.Variable(nothing, trainable=False, use_resource=True, name="statistics")
            done.append(variable.assign(part.values, read_value=False))
            kept.append(part._replace(values=variable.read_value()))
    return tf.group(*done), kept


def traceable() -> bool:
    """Whether tensors made here can be fetched by a session: the graph itself, no function."""
    graph = v1.get_default_graph()
    return not (
        tf.executing_eagerly()
        or tf.inside_function()
        or graph._get_control_flow_context() is not None
    )


def trace(optimizer: Any, reports: Sequence[Report], details: Mapping[str, Any]) -> None:
    """Offer each statistic to the session hook: one vector over the variables.

    The streams are ``optimizer/<statistic>``. Where a graph has several optimizers, or several
    towers of one, those that come later report under ``optimizer/<name>/<statistic>``, then
    ``optimizer/<name>_1/…``; the stream's details say which optimizer and worker it is.
    """
    if not reports or not traceable():
        return
    names = [name for part in reports for name in part.names]
    order = [i for part in reports for i in part.order]
    with tf.name_scope("statistics"):
        values = tf.concat([part.values for part in reports], axis=0)
        if order != sorted(order):
            values = tf.gather(values, [order.index(i) for i in range(len(order))])
        columns = tf.unstack(values, axis=1)
    labels = tuple(names[order.index(i)] for i in range(len(order)))
    prefix = free_prefix("optimizer", [s.name for s in optimizer.STATISTICS], optimizer.get_name())
    for statistic in optimizer.STATISTICS:
        trace_tensor(
            f"{prefix}/{statistic.name}",
            columns[statistic.column],
            statistic.unit,
            description=statistic.description,
            axes=[Axis("variable", labels)],
            details=details,
            every_n_steps=None,
        )


def free_prefix(family: str, streams: Sequence[str], optimizer: str) -> str:
    """The family's name, or, where another optimizer of the graph has it, a name beside it.

    Args:
        family: ``optimizer`` or ``sync``.
        streams: The last parts of the streams' names.
        optimizer: The optimizer's name.
    """
    taken = {traced.stream.name for traced in traced_tensors(v1.get_default_graph())}
    name, number = stream_name(f"{family}/{optimizer}"), 0
    prefix = family
    while any(f"{prefix}/{stream}" in taken for stream in streams):
        prefix, number = f"{name}_{number}" if number else name, number + 1
    return prefix
