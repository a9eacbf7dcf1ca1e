"""What a worker of elastic averaging keeps to itself, and what its optimizer must reveal."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.collectors.collection import trace_tensor
from deepinsight.trainer.optimizers._statistics import free_prefix, traceable
from deepinsight.trainer.optimizers.averaging.elastic_exchange import Tie
from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.versions import NO_LIMIT

v1 = tf.compat.v1
NAN = float("nan")


class _Fact(NamedTuple):
    name: str
    unit: str
    description: str


FACTS = (
    _Fact("distance_to_center", "1", "Norm of this worker's weights minus the centre, before its "
          "last exchange."),
    _Fact("rounds", "exchanges", "Exchanges of this worker in this session."),
    _Fact("wait_time", "s", "How long this worker has waited for the others in its last round."),
    _Fact("live_workers", "workers", "Workers that rounds waited for after the last one."),
)  # fmt: skip


class OwnState:
    """Numbers of one worker, in local variables on its device.

    Args:
        device: The worker's device.
        name: Name of the optimizer.

    Attributes:
        local_step: Own steps, int64.
        facts: What is known of the last exchange, float64; NaN before the first.
        look_ahead: Learning rate times momentum of the last step, float64: a Nesterov variable is
            as many times its momentum slot behind the weights.
    """

    def __init__(self, device: str, name: str) -> None:
        self._device, self._name = device, name
        self.local_step = self.make(f"{name}/local_step", tf.zeros([], tf.int64))
        nothing = tf.fill([len(FACTS)], tf.constant(NAN, tf.float64))
        self.facts = self.make(f"{name}/last_exchange", nothing)
        self._exchanges = self.make(f"{name}/exchanges", tf.zeros([], tf.int64))
        self.look_ahead = self.make(f"{name}/look_ahead", tf.zeros([], tf.float64))

    def make(self, name: str, value: tf.Tensor) -> tf.Variable:
        """A local variable on the worker."""
        with tf.init_scope(), v1.name_scope(None), v1.device(None), tf.device(self._device):
            return v1.Variable(
                value,
                trainable=False,
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
                name=name,
                use_resource=True,
            )

    def count_step(self) -> tf.Tensor:
        """Count an own step after the scope's control dependencies; the count before, int64."""
        with tf.device(self._device):
            return _fetch_and_add(self.local_step)

    def note_exchange(
        self, distance: tf.Tensor, waited_s: tf.Tensor | None, live: tf.Tensor | None
    ) -> tf.Operation:
        """Note an exchange.

        Args:
            distance: Norm of the distance before it, float64 scalar.
            waited_s: Seconds that this worker has waited, or None.
            live: Members after it, int64 scalar, or None.
        """
        with tf.device(self._device):
            number = tf.constant(NAN, tf.float64)
            facts = [
                distance,
                tf.cast(_fetch_and_add(self._exchanges) + 1, tf.float64),
                number if waited_s is None else waited_s,
                number if live is None else tf.cast(live, tf.float64),
            ]
            return self.facts.assign(tf.stack(facts), read_value=False)

    def offer(self, rounds: bool) -> None:
        """Let the session hook record what is known of the last exchange.

        Args:
            rounds: Whether exchanges are rounds, in which workers wait.
        """
        if not traceable():
            return
        offered = FACTS if rounds else FACTS[:2]
        prefix = free_prefix("sync", [fact.name for fact in FACTS], self._name)
        with tf.init_scope(), v1.device(None), tf.device(self._device):
            values = tf.unstack(self.facts.read_value())
        for fact, value in zip(offered, values, strict=False):
            trace_tensor(
                f"{prefix}/{fact.name}",
                value,
                fact.unit,
                description=fact.description,
                details={"optimizer": self._name},
                every_n_steps=None,
            )


def _fetch_and_add(counter: tf.Variable) -> tf.Tensor:
    return tf.raw_ops.ResourceCountUpTo(resource=counter.handle, limit=NO_LIMIT, T=tf.int64)


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
