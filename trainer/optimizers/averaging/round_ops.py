"""What a worker's graph needs for rounds: accumulators, counters, and the ops that work on them."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from deepinsight.trainer.cluster.members import Members
from deepinsight.trainer.optimizers._apply import compute_dtype
from deepinsight.trainer.optimizers.averaging.local_copies import (
    group_variables,
    pack_group,
    read_global,
    unpack_group,
)
from deepinsight.trainer.optimizers.versions import NO_LIMIT

v1 = tf.compat.v1

Finish = Callable[[Sequence[tuple[tf.Variable, tf.Tensor]]], Sequence[tf.Operation]]
Receive = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor], tf.Tensor], Sequence[tf.Operation]]


class RoundOps:
    """The rounds of a worker's graph, as ops; `Rounds` runs them.

    Make it in the device scope of the worker, after the members, which must be on the device of
    `global_step`.

    Args:
        values: What this worker brings into a mean: tensors or variables on the worker.
        targets: The global variables, in the same order, of the same shapes and dtypes.
        finish: Gets (global variable, mean) pairs of one group, in the group's device scope, and
            returns the ops that make the update. Means have the dtype of the arithmetic: float32,
            for float64 variables float64. It is called once per group.
        receive: Gets the new values of the targets and, if `keep_mean`, the means that they were
            made from (else nothing), and the seconds that this worker has waited, a float64 scalar;
            in the worker's device scope. It returns the ops that take the values over.
        members: Whom a round waits for; they are in no collection then.
        worker: Index of this worker.
        global_step: Rises by one per round.
        join: As `receive`, for the values that a worker begins with; None: `receive`.
        after_push: Makes an op on the worker that runs when the values have been read.
        keep_mean: Whether to keep the means on the servers for `receive`.
        sums: Whether to take sums instead of means.
        late: A bool placeholder of the caller, fed when `receive` runs: whether the round had
            ended before this worker's values arrived.
        more: Variables of the caller that belong to one launch as well; see `launch_variable`.
        name: Prefix of the names of variables and accumulators.

    Attributes:
        start_op: The chief runs it once per launch, after variables were initialised or restored.
        leave_op: A worker runs it when it takes part no more.
        variables: Variables that belong to one launch; they are in no collection.
    """

    def __init__(
        self,
        values: Sequence[tf.Tensor | tf.Variable],
        targets: Sequence[tf.Variable],
        finish: Finish,
        receive: Receive,
        *,
        members: Members,
        worker: int,
        global_step: tf.Variable,
        join: Receive | None = None,
        after_push: Callable[[], tf.Operation] | None = None,
        keep_mean: bool = False,
        sums: bool = False,
        late: tf.Tensor | None = None,
        more: Sequence[tf.Variable] = (),
        name: str = "rounds",
    ) -> None:
        if not 0 <= worker < members.workers:
            raise ValueError(
                f"`worker` must be in [0, {members.workers}). Received: worker={worker}."
            )
        self._targets, self._members, self._worker = list(targets), members, worker
        members.hide()  # `start_op` sets them, and workers wait for it
        self._global_step, self._home = global_step, global_step.device
        self._groups = group_variables(self._targets)
        self._more = list(more)
        with tf.device(self._home):
            self._round = launch_variable(f"{name}/round", [])
            self._lock = launch_variable(f"{name}/lock", [])
            self._takeovers = launch_variable(f"{name}/takeovers", [])
            self._arrived = launch_variable(f"{name}/arrived", [members.workers])
        self._accumulators, self._means = [], []
        for number, group in enumerate(self._groups):
            with tf.device(group.device):
                dtype = compute_dtype(group.dtype)
                self._accumulators.append(
                    v1.ConditionalAccumulator(
                        dtype,
                        [group.size],
                        shared_name=f"{name}/copies_{number}",
                        reduction_type="SUM" if sums else "MEAN",
                    )
                )
                if keep_mean:
                    kept = launch_variable(f"{name}/mean_{number}", [group.size], dtype)
                    self._means.append(kept)
        self._expected = v1.placeholder(tf.int64, [], f"{name}/expected")
        self._waited_s = v1.placeholder_with_default(tf.constant(0.0, tf.float64), [])
        self._late = late
        self.start_op = self._make_start()
        self._look = self._make_look()
        self._push = self._make_push(values, after_push)
        self._make_finish(finish)
        self._pull = self._make_pull(receive)
        self._join = self._make_pull(join) if join is not None else self._pull
        self._beat = members.arrive(worker)
        self.leave_op = members.leave(worker)

    @property
    def variables(self) -> list[tf.Variable]:
        """Variables that belong to one launch: set by `start_op`, in no checkpoint."""
        scalars = [self._round, self._lock, self._takeovers]
        return [*scalars, self._arrived, *self._means, *self._more]

    def _make_start(self) -> tf.Operation:
        with tf.device(self._home):
            known = tf.raw_ops.VarIsInitializedOp(resource=self._round.handle)
            following = tf.cond(
                known, lambda: self._round.read_value() + 1, lambda: tf.constant(0, tf.int64)
            )
            self._started = known
        emptied = []
        for accumulator, group in zip(self._accumulators, self._groups, strict=True):
            with tf.device(group.device):
                # The number is set first and last: nothing old comes in, and taking raises it.
                with tf.control_dependencies([accumulator.set_global_step(following)]):
                    full = accumulator.num_accumulated() > 0
                taken = tf.cond(full, _take_flag(accumulator), lambda: tf.constant(False))
                with tf.control_dependencies([taken]):
                    emptied.append(accumulator.set_global_step(following))
        fresh = [v.initializer for v in self.variables if v is not self._round]
        with tf.control_dependencies([*emptied, *fresh, self._members.start_op]):
            return self._round.assign(following, read_value=False)

    def _make_look(self) -> tf.Tensor:
        with tf.device(self._home):
            scalars = (self._round, self._lock, self._takeovers)
            vectors = (self._arrived, self._members.live, self._members.progress)
            parts = [tf.expand_dims(scalar.read_value(), 0) for scalar in scalars]
            return tf.concat([*parts, *(vector.read_value() for vector in vectors)], axis=0)

    def _make_push(
        self,
        values: Sequence[tf.Tensor | tf.Variable],
        after_push: Callable[[], tf.Operation] | None,
    ) -> tf.Tensor:
        """The round that the values have come into, and a look thereafter."""
        packed = [pack_group(group, values) for group in self._groups]
        with tf.control_dependencies(packed):
            done = [after_push()] if after_push is not None else []
        for accumulator, group, vector in zip(
            self._accumulators, self._groups, packed, strict=True
        ):
            with tf.device(group.device):
                wide = tf.cast(vector, compute_dtype(group.dtype))
                done.append(accumulator.apply_grad(wide, local_step=self._expected))
        with tf.device(self._home), tf.control_dependencies(done):
            # Read before: with the arrival the round may end before the look is made.
            found = tf.expand_dims(self._round.read_value(), 0)
        with tf.device(self._home), tf.control_dependencies([found]):
            arrived = tf.raw_ops.ResourceScatterUpdate(
                resource=self._arrived.handle,
                indices=tf.constant([self._worker], tf.int64),
                updates=tf.expand_dims(self._expected + 1, 0),
            )
            with tf.control_dependencies([arrived, self._members.arrive(self._worker)]):
                return tf.concat([found, self._make_look()], axis=0)

    def _make_finish(self, finish: Finish) -> None:
        with tf.device(self._home):
            ticket = _fetch_and_add(self._lock)
            with tf.control_dependencies([ticket]):
                self._claim = tf.stack([ticket, self._round.read_value()])
            self._release = self._lock.assign(0, read_value=False)
            self._take_over = _fetch_and_add(self._takeovers)
            # An owner that was taken for dead must not end a later round.
            valid = tf.debugging.assert_equal(
                self._round.read_value(), self._expected, "the round was ended by another worker"
            )
        self._ends = [self._end_group(number, finish, valid) for number in range(len(self._groups))]
        self._counts = tf.stack([a.num_accumulated() for a in self._accumulators])
        with tf.control_dependencies(self._ends):
            self._finish = self._advance()
        level = [a.set_global_step(self._expected + 1) for a in self._accumulators]
        with tf.control_dependencies(level):
            self._close = self._advance()

    def _end_group(self, number: int, finish: Finish, valid: tf.Operation) -> tf.Operation:
        group = self._groups[number]
        with tf.device(group.device), tf.control_dependencies([valid]):
            mean = self._accumulators[number].take_grad(1)
            means = unpack_group(group, mean, self._targets)
            done = [*finish([(self._targets[place], means[place]) for place in group.places])]
            if self._means:
                done.append(self._means[number].assign(mean, read_value=False))
            return tf.group(*done)

    def _advance(self) -> tf.Operation:
        with tf.device(self._home):
            one = tf.ones([], self._global_step.dtype.base_dtype)
            # A ref variable in scripts that disable the behaviour of TensorFlow 2.
            counted = v1.assign_add(self._global_step, one)
            with tf.control_dependencies([counted]):
                advanced = self._round.assign(self._expected + 1, read_value=False)
            with tf.control_dependencies([advanced]):
                return self._lock.assign(0, read_value=False)

    def _make_pull(self, receive: Receive) -> tf.Tensor:
        """The round, read before the values, once they have been taken over."""
        with tf.device(self._home):
            now = self._round.read_value()
            with tf.control_dependencies([now]):
                arrived = self._members.arrive(self._worker)
        with tf.control_dependencies([now]):
            values = read_global(self._groups, self._targets)
            means: dict[int, tf.Tensor] = {}
            for group, kept in zip(self._groups, self._means, strict=False):
                with tf.device(group.device):
                    mean = kept.read_value()
                means.update(unpack_group(group, mean, self._targets))
        with tf.control_dependencies([now]):
            ordered = [means[place] for place in range(len(means))]
            received = receive(values, ordered, self._waited_s)
        with tf.control_dependencies([*received, arrived]):
            return tf.identity(now)


def _take_flag(accumulator: v1.ConditionalAccumulator) -> Callable[[], tf.Tensor]:
    def take() -> tf.Tensor:
        with tf.control_dependencies([accumulator.take_grad(1)]):
            return tf.constant(True)

    return take


def launch_variable(name: str, shape: Sequence[int], dtype: tf.DType = tf.int64) -> tf.Variable:
    """A variable of zeros, in no collection: `Rounds.start_op` initialises it."""
    return v1.get_variable(
        name,
        shape,
        dtype,
        initializer=v1.zeros_initializer(),
        trainable=False,
        use_resource=True,
        collections=[],
    )


def _fetch_and_add(counter: tf.Variable) -> tf.Tensor:
    return tf.raw_ops.ResourceCountUpTo(resource=counter.handle, limit=NO_LIMIT, T=tf.int64)
