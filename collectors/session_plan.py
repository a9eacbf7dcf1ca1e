"""What the session hook adds to a graph before it is finalized."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from deepinsight.collectors import graph as graph_module
from deepinsight.collectors.arrays import TensorFlowArrays
from deepinsight.collectors.collection import TracedTensor, traced_tensors
from deepinsight.collectors.packing import Pack, measure_parts, pack
from deepinsight.collectors.probes import AUC, Gradients, Probe, Scalars
from deepinsight.collectors.probes.base import GRADIENT, WEIGHT, WEIGHT_BEFORE, Slices, Variable
from deepinsight.collectors.schedule import Cadence
from deepinsight.traces import group_slices, stream_name


@dataclass(frozen=True)
class Norm:
    """A gradient's norm, and the op whose execution says that the gradient was computed."""

    probe: Probe
    variable: Variable
    tensor: Any
    trigger: Any


@dataclass(eq=False)
class ScalarPack:
    """Traced tensors of one device and cadence in one vector."""

    cadence: Cadence
    traced: list[TracedTensor] = field(default_factory=list)
    tensor: Any = None

    def possible(self, fed: frozenset[str], ops: frozenset[Any]) -> bool:
        """Whether the run of `ops` feeds all placeholders, and makes all updates, they need.

        A tensor that depends on another update (what the chief of a synchronous run does in a
        thread of its own) must not be fetched: the fetch would make that update.
        """
        needed = graph_module.closure([t.tensor for t in self.traced], fed)
        available = graph_module.placeholders(ops) | fed
        return (
            graph_module.placeholders(needed) <= available and graph_module.changes(needed) <= ops
        )

    def unpack(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Stream name -> value, in the stream's own dtype."""
        if len(self.traced) == 1:
            return {self.traced[0].stream.name: vector}
        values, offset = {}, 0
        for entry in self.traced:
            size = int(np.prod(entry.stream.shape, dtype=np.int64))
            piece = vector[offset : offset + size].reshape(entry.stream.shape)
            values[entry.stream.name] = piece.astype(entry.stream.dtype)
            offset += size
        return values


@dataclass(frozen=True)
class PredictionTensors:
    """Labels, scores and perhaps weights of an AUC probe."""

    tensors: tuple[Any, ...]

    def possible(self, fed: frozenset[str], available: frozenset[str]) -> bool:
        """Whether all placeholders that the tensors need are fed."""
        return graph_module.placeholders(graph_module.closure(self.tensors, fed)) <= available


class SessionPlan:
    """The tensors and ops that the hook may fetch, all made before the graph is finalized.

    Args:
        graph: The graph.
        probes: The hook's probes.
        scalars: The probe that records the traced tensors.
        every_n_steps: The hook's cadence.
        feature_groups: As in the trace format.
        identity: Distinguishes this process's shadows on a shared parameter server.
    """

    def __init__(
        self,
        graph: Any,
        probes: Sequence[Probe],
        scalars: Scalars,
        *,
        every_n_steps: int,
        feature_groups: Mapping[str, Any] | None,
        identity: str,
    ) -> None:
        self.graph = graph
        self.failures: list[tuple[Probe | None, Exception]] = []
        self.norms: list[Norm] = []
        self.snapshots: list[Pack] = []
        self.saves: dict[int, list[Any]] = {}
        self.predictions: list[PredictionTensors] = []
        self._xp = TensorFlowArrays()
        self._identity = hashlib.sha256(identity.encode()).hexdigest()[:16]
        with graph.as_default(), tf.device(None), tf.name_scope("deepinsight/"):
            self._tf_variables = _floating_variables(graph)
            self._describe(feature_groups or {})
            self._find_training(probes)
            for probe in probes:
                try:
                    self._add_probe(probe)
                except Exception as error:
                    self.failures.append((probe, error))
            self.traced = traced_tensors(graph)
            self.packs = self._pack_scalars(scalars, every_n_steps)

    def _describe(self, feature_groups: Mapping[str, Any]) -> None:
        self._infos: dict[str, Variable] = {}
        self.metadata: dict[str, dict[str, Any]] = {}
        for variable in self._tf_variables:
            name, shape = stream_name(variable.name), tuple(variable.shape.as_list())
            groups = group_slices(feature_groups, name, shape[0]) if shape else {}
            dtype = "float64" if variable.dtype.base_dtype == tf.float64 else "float32"
            self._infos[variable.name] = Variable(name, shape, dtype, variable.device, groups)
            self.metadata[name] = {
                "shape": list(shape),
                "dtype": variable.dtype.base_dtype.name,
                "device": variable.device,
            }

    @property
    def variables(self) -> list[tuple[Variable, frozenset[str]]]:
        """The trainable floating-point variables, each with what is offered of it."""
        with_gradient = {norm.variable.name for norm in self.norms}
        offered = frozenset({WEIGHT, WEIGHT_BEFORE})
        return [
            (info, offered | {GRADIENT} if info.name in with_gradient else offered)
            for info in self._infos.values()
        ]

    def _find_training(self, probes: Sequence[Probe]) -> None:
        self._applications = graph_module.find_applications(self.graph, self._tf_variables)
        step = tf.compat.v1.train.get_global_step(self.graph)
        readings = graph_module.step_readings(tf, step) if step is not None else []
        # A global step that nothing raises would stand still: the hook counts runs instead.
        self.step_readings = readings if len(readings) > 1 else []
        self._step_is_local = step is not None and not tf.DeviceSpec.from_string(step.device).job
        triggers = {a.trigger for a in self._applications}
        triggers |= {r.trigger for r in readings if r.trigger is not None}
        for op in self.graph.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP):
            triggers.add(getattr(op, "op", op))
        for probe in probes:
            if isinstance(probe, Gradients) and probe.grads_and_vars is not None:
                triggers |= {a.trigger for a in _given_applications(probe.grads_and_vars)}
        self._triggers = frozenset(triggers)
        if not triggers:
            message = (
                "no training step was found in the graph, so nothing will be recorded. Raise a "
                "global step in it, or give Gradients(grads_and_vars=...)."
            )
            self.failures.append((None, RuntimeError(message)))

    def trains(self, ops: frozenset[Any]) -> bool:
        """Whether a run of these ops is a training step."""
        return not self._triggers.isdisjoint(ops)

    def step_increment(self, ops: frozenset[Any]) -> int | None:
        """How far a run of these ops raises the global step; None if only reading it can tell.

        Known where the step lives in this process and the run adds constants to it.
        """
        if not self.step_readings:
            return 1
        adds = [r.adds for r in self.step_readings if r.trigger in ops]
        if not self._step_is_local or not adds or None in adds:
            return None
        return sum(adds)

    def _add_probe(self, probe: Probe) -> None:
        if isinstance(probe, AUC) and probe.labels is not None:
            tensors = (probe.labels, probe.scores, probe.sample_weight)
            self.predictions.append(PredictionTensors(tuple(t for t in tensors if t is not None)))
        if not probe.parts():
            return
        if isinstance(probe, Gradients):
            self._add_norms(probe)
        measured = []
        for variable in self._tf_variables:
            info = self._infos[variable.name]
            if not probe.accepts(info):
                continue
            with tf.device(variable.device or None):
                tensors = self._snapshot(probe, variable, info)
            if tensors:
                measured.append((probe, info, tensors))
        self.snapshots.extend(pack(tf, measured))

    def _snapshot(self, probe: Probe, variable: Any, info: Variable) -> dict[str, Any]:
        offered = {"weight": variable}
        if not graph_module.is_resource(variable):
            offered["weight"] = variable.value()
        if not isinstance(probe, Gradients):
            return measure_parts(self._xp, probe, info, offered)
        if not probe.wants_before(info):
            return {}
        handle, save = self._shadow(variable, info)
        self.saves.setdefault(id(probe), []).append(save)
        before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype.base_dtype)
        before.set_shape(info.shape)
        measured = measure_parts(self._xp, probe, info, {**offered, "weight_before": before})
        with tf.control_dependencies(list(measured.values())):
            forget = tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
        with tf.control_dependencies([forget]):
            return {key: tf.identity(tensor) for key, tensor in measured.items()}

    def _shadow(self, variable: Any, info: Variable) -> tuple[Any, Any]:
        """A copy of a variable on its device, in no collection; assigning shares the buffer.

        The optimizer's next dense update then writes to a new buffer, which is the only copy made.
        A mutable (non-resource) tensor is updated in place and must be copied here.
        """
        handle = tf.raw_ops.VarHandleOp(
            dtype=variable.dtype.base_dtype,
            shape=info.shape,
            shared_name=f"deepinsight/{self._identity}/{info.name}",
        )
        if graph_module.is_resource(variable):
            value = variable.read_value()
        else:
            value = tf.raw_ops.DeepCopy(x=variable.value())
        return handle, tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def _add_norms(self, probe: Gradients) -> None:
        applications = self._applications
        if probe.grads_and_vars is not None:
            applications = _given_applications(probe.grads_and_vars)
        for application in applications:
            info = self._infos.get(application.variable.name)
            if info is None or not probe.accepts(info):
                continue
            gradient = application.gradient
            tensor = gradient.values if isinstance(gradient, Slices) else gradient
            with tf.device(tensor.device or None):
                norm = measure_parts(self._xp, probe, info, {"gradient": gradient})["norm"]
            self.norms.append(Norm(probe, info, norm, application.trigger))

    def _pack_scalars(self, scalars: Scalars, every_n_steps: int) -> list[ScalarPack]:
        packs: dict[Any, ScalarPack] = {}
        for entry in self.traced:
            if not scalars.wants(entry.stream.name):
                continue
            steps = scalars.every_n_steps or entry.every_n_steps or every_n_steps
            seconds = scalars.every_n_seconds
            needed = graph_module.closure([entry.tensor])
            conditions = graph_module.placeholders(needed), graph_module.changes(needed)
            key = (entry.tensor.device, steps, seconds, conditions, entry.tensor.dtype.name)
            cadence = Cadence(None, seconds) if seconds is not None else Cadence(steps)
            packs.setdefault(key, ScalarPack(cadence)).traced.append(entry)
        for key, scalar_pack in packs.items():
            tensors = [t.tensor for t in scalar_pack.traced]
            scalar_pack.tensor = tensors[0]
            if len(tensors) > 1:
                with tf.device(key[0] or None):
                    scalar_pack.tensor = tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
        return list(packs.values())


def _floating_variables(graph: Any) -> list[Any]:
    """Trainable variables of fixed shape and floating dtype."""
    found = graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
    return [v for v in found if v.dtype.is_floating and v.shape.is_fully_defined()]


def _given_applications(
    grads_and_vars: Sequence[tuple[Any, Any]],
) -> list[graph_module.Application]:
    """Applications from the user's pairs; the gradient's own op is the trigger."""
    found = []
    for gradient, variable in grads_and_vars:
        if gradient is None:
            continue
        if isinstance(gradient, tf.IndexedSlices):
            sparse = Slices(gradient.values, gradient.indices)
            found.append(graph_module.Application(variable, sparse, gradient.values.op))
        else:
            found.append(graph_module.Application(variable, gradient, gradient.op))
    return found
