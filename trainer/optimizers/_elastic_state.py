"""What a worker of elastic averaging keeps to itself, and what its optimizer must reveal."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor, traced_tensors
from deepinsight.trainer.optimizers._elastic_exchange import Tie
from deepinsight.trainer.optimizers._statistics import traceable
from deepinsight.trainer.optimizers.exchange import GradientAndVariable

v1 = tf.compat.v1
NAN = float("nan")


class OwnState:
    """Numbers of one worker, in local variables on its device.

    Args:
        device: The worker's device.
        name: Prefix of the names.

    Attributes:
        local_step: Own steps, int64.
        distance: Norm of the distance to the centre at the last exchange, float64; NaN at first.
        exchanges: Exchanges of this worker, int64.
        look_ahead: Learning rate times momentum of the last step, float64: a Nesterov variable is
            as many times its momentum slot behind the weights.
    """

    def __init__(self, device: str, name: str) -> None:
        self._device, self._name = device, name
        self.local_step = self.number("local_step", 0, tf.int64)
        self.distance = self.number("distance_to_center", NAN)
        self.exchanges = self.number("exchanges", 0, tf.int64)
        self.look_ahead = self.number("look_ahead", 0.0)

    def number(self, name: str, value: float, dtype: tf.DType = tf.float64) -> tf.Variable:
        """One number more, a local variable."""
        return self.make(f"{self._name}/{name}", tf.constant(value, dtype))

    def make(self, name: str, value: Any) -> tf.Variable:
        """A local variable on the worker."""
        with tf.init_scope(), v1.name_scope(None), v1.device(None), tf.device(self._device):
            return v1.Variable(
                value() if callable(value) else value,
                trainable=False,
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
                name=name,
                use_resource=True,
            )

    def count_step(self) -> tuple[tf.Operation, tf.Tensor]:
        """Count an own step after the scope's control dependencies; the op, and the count then."""
        counted = self.local_step.assign_add(1, read_value=False)
        with tf.control_dependencies([counted]):
            return counted, self.local_step.read_value()

    def count_exchange(self, distance: tf.Tensor) -> tf.Operation:
        """Note an exchange."""
        return tf.group(
            self.distance.assign(distance, read_value=False),
            self.exchanges.assign_add(1, read_value=False),
        )


def offer(name: str, variable: tf.Variable, unit: str, description: str) -> None:
    """Let the session hook record a number; what comes second in a graph is not recorded."""
    taken = {traced.stream.name for traced in traced_tensors(v1.get_default_graph())}
    if traceable() and name not in taken:
        with tf.device(variable.device):
            value = variable.read_value()
        trace_tensor(name, value, unit, description=description, every_n_steps=None)


def keep_local(make: Callable[[], Any]) -> Any:
    """Run what may make global variables, and make them local ones: each worker has its own."""
    everywhere = v1.get_collection_ref(v1.GraphKeys.GLOBAL_VARIABLES)
    before = {id(variable) for variable in everywhere}
    made = make()
    mine = [variable for variable in everywhere if id(variable) not in before]
    everywhere[:] = [variable for variable in everywhere if id(variable) in before]
    for variable in mine:
        v1.add_to_collection(v1.GraphKeys.LOCAL_VARIABLES, variable)
    return made


def learning_rate_of(opt: v1.train.Optimizer) -> Any:
    """The learning rate of an optimizer: a number or a tensor.

    Raises:
        ValueError: If it does not reveal one.
    """
    hyper = getattr(opt, "_hyper", {})
    for rate in (getattr(opt, "_learning_rate", None), getattr(opt, "_lr", None),
                 hyper.get("learning_rate")):  # fmt: skip
        if rate is not None:
            return rate() if callable(rate) else rate
    raise ValueError(
        "`rho` must be given where `opt` has no learning rate to derive it from. Received: "
        f"rho=None, opt={type(opt).__name__}; pass rho=0 for no penalty."
    )


def add_penalty(
    pairs: Sequence[GradientAndVariable], rho: Any, known: Callable[[tf.Variable], tf.Variable]
) -> list[GradientAndVariable]:
    """Add rho (x - c) to each gradient; the result is dense.

    Args:
        pairs: (gradient, variable); None is no gradient.
        rho: A number or a tensor.
        known: The worker's copy of a variable's centre.
    """
    penalised = []
    for gradient, variable in pairs:
        with tf.device(variable.device):
            distance = variable.read_value() - known(variable).read_value()
            penalty = tf.cast(rho, distance.dtype) * distance
            if isinstance(gradient, tf.IndexedSlices):
                places = tf.expand_dims(gradient.indices, 1)
                penalty = tf.tensor_scatter_nd_add(penalty, places, gradient.values)
            elif gradient is not None:
                penalty += gradient
        penalised.append((penalty, variable))
    return penalised


def is_nesterov(opt: v1.train.Optimizer) -> bool:
    """Whether the optimizer's variables hold a look-ahead: TensorFlow's Nesterov momentum."""
    return isinstance(opt, v1.train.MomentumOptimizer) and bool(opt._use_nesterov)


def keep_look_ahead(opt: v1.train.Optimizer, state: OwnState) -> tf.Operation:
    """Note with which rates the step is made whose gradients have just been applied."""
    rate, momentum = (
        tf.cast(tensor, tf.float64) for tensor in (opt._learning_rate_tensor, opt._momentum_tensor)
    )
    with tf.device(state.look_ahead.device):
        return state.look_ahead.assign(rate * momentum, read_value=False)


def with_look_ahead(tie: Tie, opt: v1.train.Optimizer, state: OwnState) -> Tie:
    """The tie of a variable that holds a look-ahead: the velocity is -rate times the slot."""
    slot = opt.get_slot(tie.local, "momentum")
    if slot is None:
        return tie
    with tf.device(tie.local.device):
        scale = tf.cast(state.look_ahead.read_value(), slot.dtype.base_dtype)
        return tie._replace(ahead=-scale * slot.read_value())
