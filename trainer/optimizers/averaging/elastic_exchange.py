"""The exchange of a worker with the centre: one message each way and server."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from deepinsight.trainer import kernels
from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.optimizers._apply import compute_dtype
from deepinsight.trainer.optimizers.averaging.elastic_bytes import carry

v1 = tf.compat.v1
# Of a centre, the moving rate and a worker's weights: the new weights, and the squared distance.
Pull = Callable[[tf.Variable, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
LARGE = 2**20  # bytes from which a variable travels alone: copying it would cost more


class Tie(NamedTuple):
    """A worker's variable and the centre that it is tied to.

    Attributes:
        local: The worker's variable.
        center: The centre, on a parameter server or here.
        known: The worker's copy of the centre, or None.
        ahead: How far the variable is ahead of the worker's weights, in its shape, or None.
    """

    local: tf.Variable
    center: tf.Variable
    known: tf.Variable | None = None
    ahead: tf.Tensor | None = None

    def weights(self) -> tf.Tensor:
        """The worker's weights: the variable, without its look-ahead."""
        value = self.local.read_value()
        return value if self.ahead is None else value - self.ahead

    def set_weights(self, weights: tf.Tensor) -> tf.Operation:
        """Set the worker's weights; the variable stays as far ahead of them as it is."""
        value = weights if self.ahead is None else weights + self.ahead
        return self.local.assign(value, read_value=False)


def by_devices(ties: Sequence[Tie]) -> dict[tuple[str, str], list[Tie]]:
    """The ties of each pair of devices, the centre's first."""
    groups: dict[tuple[str, str], list[Tie]] = {}
    for tie in ties:
        groups.setdefault((tie.center.device, tie.local.device), []).append(tie)
    return groups


class Exchange:
    """Exchanges with the centre as it is, whoever else does; built in the scope without devices.

    Each centre moves, and the worker learns by how much, under one lock, so that the sum of both
    stays what it was. A session hook can use it as it uses `Rounds`; nobody waits for anybody.

    Args:
        ties: The worker's variables and their centres.
        moving_rate: Share of the distance by which both sides move, in [0, 1].
        global_step: Raised by one by each exchange; None: nothing is counted.
        note: Gets the norm of the distance before the exchange, a float64 scalar; makes an op.
        others: What only begins at its centre.
        kernel: Whether the servers have this project's kernels, which lock one variable at a time
            and pass over it once; else a server's centres are locked together.

    Attributes:
        leave_op: Does nothing: nobody waits for this worker.
    """

    def __init__(
        self,
        ties: Sequence[Tie],
        moving_rate: float,
        global_step: tf.Variable | None,
        note: Callable[[tf.Tensor], tf.Operation],
        others: Sequence[Tie] = (),
        *,
        kernel: bool = False,
    ) -> None:
        self._join = tf.group(*fetch_centers([*ties, *others]))
        pull = _pull_by_kernel if kernel else _pull_composed
        self._exchange = _exchange(ties, moving_rate, global_step, note, pull)
        self.leave_op = tf.no_op()

    def begin(self, session: v1.Session, *, starts: bool, patience: Patience) -> None:
        """Begin at the centre."""
        del starts, patience
        session.run(self._join)

    def exchange(self, session: v1.Session, patience: Patience) -> None:
        """Make an exchange."""
        del patience
        session.run(self._exchange)

    def beat(self, session: v1.Session, patience: Patience) -> None:
        """Nobody waits for a sign of life."""


def _exchange(
    ties: Sequence[Tie],
    moving_rate: float,
    global_step: tf.Variable | None,
    note: Callable[[tf.Tensor], tf.Operation],
    pull: Pull,
) -> tf.Operation:
    done: list[tf.Operation | tf.Tensor] = []
    squares: list[tf.Tensor] = []
    for (there, here), mine in by_devices(ties).items():
        with tf.device(here):
            sent = [tie.weights() for tie in mine]
        with tf.device(there):
            reply = _pull(mine, carry(sent, there, limit=LARGE), moving_rate, pull)
            if global_step is not None and global_step.device == there:
                with tf.control_dependencies(reply):
                    raised = raise_step(global_step)
                with tf.control_dependencies([raised]):
                    reply[-1] = tf.identity(reply[-1])  # else its end would be a message more
                global_step = None
        arrived = carry(reply, here, limit=LARGE)
        squares.append(arrived.pop())
        with tf.device(here):
            done += _take(mine, arrived)
    if global_step is not None:  # it is where no centre is
        with tf.control_dependencies(done), tf.device(global_step.device):
            done.append(raise_step(global_step))
    with tf.device(ties[0].local.device):
        return tf.group(*done, note(tf.sqrt(tf.add_n(squares))))


def _pull(
    ties: Sequence[Tie], weights: Sequence[tf.Tensor], moving_rate: float, pull: Pull
) -> list[tf.Tensor]:
    """On the server: the new weights, the centres that the worker keeps, the squared distance."""
    arrived = [tf.identity(value) for value in weights]

    def reply() -> list[tf.Tensor]:
        pulled, squares = [], []
        for tie, value in zip(ties, arrived, strict=True):
            rate = tf.constant(moving_rate, compute_dtype(value.dtype))
            moved, square = pull(tie.center, rate, value)
            pulled.append(moved)
            squares.append(square)
        with tf.control_dependencies(pulled):
            centers = [tie.center.read_value() for tie in ties if tie.known is not None]
        return [*pulled, *centers, tf.add_n(squares)]

    if pull is _pull_by_kernel:
        return reply()
    with tf.control_dependencies(arrived):  # nobody holds the lock while they travel
        return list(tf.CriticalSection(shared_name=f"{ties[0].center.op.name}/lock").execute(reply))


def _pull_by_kernel(
    center: tf.Variable, rate: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    moved, statistics = kernels.ops().resource_apply_elastic_pull(center.handle, rate, weights)
    return moved, tf.square(statistics[0])


def _pull_composed(
    center: tf.Variable, rate: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The same of TensorFlow's ops, under a lock of the caller."""
    distance = tf.cast(weights, rate.dtype) - tf.cast(center.read_value(), rate.dtype)
    step = tf.cast(rate * distance, weights.dtype)
    with tf.control_dependencies([center.assign_add(step, use_locking=True, read_value=False)]):
        return weights - step, tf.reduce_sum(tf.cast(tf.square(distance), tf.float64))


def _take(ties: Sequence[Tie], arrived: Sequence[tf.Tensor]) -> list[tf.Operation]:
    """On the worker: keep what the server replied."""
    known = [tie.known for tie in ties if tie.known is not None]
    weights, centers = arrived[: len(ties)], arrived[len(ties) :]
    done = [tie.set_weights(value) for tie, value in zip(ties, weights, strict=True)]
    done += [
        copy.assign(value, read_value=False) for copy, value in zip(known, centers, strict=True)
    ]
    return done


def raise_step(global_step: tf.Variable) -> tf.Operation:
    """Raise a global step by one, under the scope's control dependencies."""
    one = tf.ones([], global_step.dtype.base_dtype)
    return v1.assign_add(global_step, one).op


def fetch_centers(ties: Sequence[Tie]) -> list[tf.Operation]:
    """Set the worker's weights, and its copies, to the centre: the worker begins there."""
    done = []
    for (there, here), mine in by_devices(ties).items():
        with tf.device(there):
            read = [tie.center.read_value() for tie in mine]
        with tf.device(here):
            for tie, value in zip(mine, carry(read, here, limit=LARGE), strict=True):
                done += [
                    copy.assign(value, read_value=False)
                    for copy in (tie.local, tie.known)
                    if copy is not None
                ]
    return done
