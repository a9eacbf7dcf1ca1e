"""Model averaging and block momentum: workers train on their own and meet in rounds.

`ModelAverageOptimizer` and `ModelAverageCustomGetter` have the signatures that they had in
``tf.contrib.opt`` of TensorFlow 1.15, and do what was promised there: every worker starts from the
global values, also after a restart.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.optimizers._apply import compute_dtype
from deepinsight.trainer.optimizers._arguments import check_optimizer, whole
from deepinsight.trainer.optimizers.averaging.block_update import (
    RoundUpdate,
    check_block_momentum,
    usual_block_momentum,
)
from deepinsight.trainer.optimizers.averaging.local_copies import (
    GLOBAL_VARIABLE_NAME,
    LocalCopiesGetter,
    check_copies,
    group_variables,
    place_of_worker,
    read_global,
    sum_of_squares,
)
from deepinsight.trainer.optimizers.averaging.rounds import Rounds
from deepinsight.trainer.optimizers.averaging.rounds_hook import RoundFacts, RoundsHook
from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.versions import NO_LIMIT

v1 = tf.compat.v1
_PATIENCE = Patience()
_SHARED = (v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.LOCAL_VARIABLES)
__all__ = [
    "GLOBAL_VARIABLE_NAME",
    "ModelAverageCustomGetter",
    "ModelAverageOptimizer",
    "usual_block_momentum",
]


class ModelAverageCustomGetter(LocalCopiesGetter):
    """A custom getter that gives every worker its own copy of each trainable variable.

    Trainable variables go to the worker, into the collections LOCAL_VARIABLES and
    TRAINABLE_VARIABLES; the copies that rounds average go where the device scope puts them, as
    ``global_center_variable/<name>`` into GLOBAL_VARIABLES. Use it with
    `tf.compat.v1.get_variable` under a `tf.compat.v1.train.replica_device_setter`.

    Args:
        worker_device: Device of this worker, such as ``"/job:worker/task:0"``.

    Attributes:
        worker_device: As given.
        global_variables: The global copy of each local variable.

    Example:
        >>> v1, here = tf.compat.v1, "/job:worker/task:1"
        >>> getter = ModelAverageCustomGetter(here)
        >>> setter = v1.train.replica_device_setter(ps_tasks=1, worker_device=here)
        >>> with tf.Graph().as_default(), v1.device(setter):
        ...     with v1.variable_scope("", custom_getter=getter):
        ...         w = v1.get_variable("w", [10, 2])
        >>> w.device, getter.global_variables[w].device
        ('/job:worker/task:1', '/job:ps/task:0')
    """


class ModelAverageOptimizer(v1.train.Optimizer):
    r"""Let workers step on copies of their own, and average the copies every so many steps.

    Each call of the train op is a step of `opt` on this worker's copies; it sends nothing. After
    every `interval_steps` own steps a worker brings its copies to the parameter servers and waits
    until every live worker has; then

    .. math::

        \bar w = \frac 1 n \sum_m w_m; \qquad w \leftarrow \bar w; \qquad w_m \leftarrow w

    and `global_step`, which counts the rounds, rises by one. With block momentum (BMUF), where
    :math:`w` is what the workers started from:

    .. math::

        \Delta \leftarrow \eta \Delta + \zeta (\bar w - w); \qquad
        w \leftarrow w + \Delta; \qquad w_m \leftarrow w

    With Nesterov the workers start from :math:`w + \eta \Delta`, and that is what the global
    variables hold.

    All trainable variables take part, embedding tables included. A sparse gradient changes rows of
    the worker's own table; the round averages the whole table.

    A round needs no chief: whoever arrives last ends it. It waits for live workers only. One that
    ends its session leaves; one that does not move for `patience` is left behind, and is a member
    again when it comes back: its copies have missed the round and are dropped, it takes the
    global values and goes on. When a session ends within an interval, the steps since the last
    round are in no mean.

    A `tf.compat.v1.train.Saver` keeps the global variables: the averaged model, under names that
    begin with ``global_center_variable/``, with block momentum also :math:`\Delta`, the slot
    ``block_update``. What `opt` knows (its slots) is this worker's, in LOCAL_VARIABLES; it starts
    afresh with every session. ``v1.train.Saver(optimizer.exported)`` writes the averaged model
    under the variables' plain names, for a graph without the custom getter.

    Args:
        opt: The optimizer of the local steps; its slots are local.
        num_worker: M, workers in all, >= 1.
        is_chief: Whether this is the worker that begins a launch; one must.
        ma_custom_getter: The getter that made the variables.
        interval_steps: Own steps between rounds, >= 1.
        use_locking: If True, variables are changed under a lock. Rounds follow each other anyway.
        name: Name of the optimizer.
        worker_index: m in [0, num_worker), different for each worker; None: the task number of the
            getter's device.
        patience: How long a round waits for a worker that does not move.
        block_momentum: :math:`\eta` in [0, 1); None: plain averaging. See `usual_block_momentum`.
        block_learning_rate: :math:`\zeta` > 0.
        block_nesterov: Whether the workers look ahead.

    Attributes:
        global_variables: The global copy of each local variable.
        exported: The global copies by the names of the variables that the model asked for.
        local_step: Own steps in this session, int64 variable on the worker.
        members: Whom rounds wait for; after `apply_gradients`, as what follows.
        rounds: The rounds.
        start_op: What the hook of the chief runs at the start of a launch.
        leave_op: What the hook runs at the end: rounds wait for this worker no more.
        launch_variables: Variables that belong to one launch: set by `start_op`, in no checkpoint.
        local_variables: State of this worker: its copies and what `opt` keeps beside them.

    Raises:
        ValueError: If an argument is out of range, or the getter has made no variables.

    Example:
        >>> v1 = tf.compat.v1
        >>> with tf.Graph().as_default():
        ...     getter = ModelAverageCustomGetter("/job:localhost/task:0")
        ...     with v1.variable_scope("", custom_getter=getter):
        ...         w = v1.get_variable("w", initializer=[1.0])
        ...     base = v1.train.GradientDescentOptimizer(0.5)
        ...     optimizer = ModelAverageOptimizer(base, 1, True, getter, interval_steps=2)
        ...     step = v1.train.get_or_create_global_step()
        ...     train_op = optimizer.minimize(w[0], step)
        ...     hook = optimizer.make_session_run_hook()
        ...     with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
        ...         for _ in range(5):
        ...             session.run(train_op)
        ...         averaged = optimizer.global_variables[w]
        ...         print([value.tolist() for value in session.run([step, averaged, w])])
        [2, [-1.0], [-1.5]]

    References:
        Povey, Zhang, Khudanpur, 2014, Parallel training of DNNs with natural gradient and
        parameter averaging. arXiv:1410.7455.
        Chen and Huo, 2016, Scalable training of deep learning machines by incremental block
        training with intra-block parallel optimization and blockwise model-update filtering.
        ICASSP.
    """

    def __init__(
        self,
        opt: v1.train.Optimizer,
        num_worker: int,
        is_chief: bool,
        ma_custom_getter: ModelAverageCustomGetter,
        interval_steps: int = 100,
        use_locking: bool = True,
        name: str = "ModelAverageOptimizer",
        *,
        worker_index: int | None = None,
        patience: Patience = _PATIENCE,
        block_momentum: float | None = None,
        block_learning_rate: float = 1.0,
        block_nesterov: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        check_optimizer("opt", opt)
        if not isinstance(ma_custom_getter, LocalCopiesGetter):
            raise ValueError(
                "`ma_custom_getter` must be the ModelAverageCustomGetter that made the variables. "
                f"Received: {ma_custom_getter!r}."
            )
        self._base, self._chief, self._patience = opt, bool(is_chief), patience
        self._workers = whole("num_worker", num_worker, 1)
        self._interval = whole("interval_steps", interval_steps, 1)
        self._block = check_block_momentum(
            block_momentum, block_learning_rate, block_nesterov, self._workers
        )
        self.worker_device = ma_custom_getter.worker_device
        self._worker = place_of_worker(worker_index, self.worker_device, self._workers, self._chief)
        self.global_variables = ma_custom_getter.global_variables
        self._own: list[tf.Variable] = []
        self._counts: dict[tf.Operation, tf.Tensor] = {}
        self.rounds: Rounds | None = None
        with self._on_worker():
            self.local_step = v1.Variable(
                tf.zeros([], tf.int64),
                trainable=False,
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
                name="local_step",
                use_resource=True,
            )
            self._to_step = v1.placeholder(tf.int64, [], "restored_local_step")
            self._set_step = self.local_step.assign(self._to_step, read_value=False)
        self._track_trackable(opt, "base")

    @property
    def exported(self) -> dict[str, tf.Variable]:
        """The global copies by the names of the variables that the model asked for."""
        return {local.op.name: copy for local, copy in self.global_variables.items()}

    @property
    def local_variables(self) -> list[tf.Variable]:
        """State of this worker: its copies and what the optimizer of the steps keeps beside."""
        return [*self.global_variables, *self._own]

    @property
    def launch_variables(self) -> list[tf.Variable]:
        """Variables that belong to one launch: set by `start_op`, in no checkpoint."""
        return [*self._built().variables, *self.members.variables]

    @property
    def start_op(self) -> tf.Operation:
        """What the chief runs once per launch, after variables were initialised or restored."""
        return self._built().start_op

    def variables(self) -> list[tf.Variable]:
        """The slots: those of the block momentum, and those of the optimizer of the steps."""
        return [*super().variables(), *self._base.variables()]

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[GradientAndVariable]:
        """As the wrapped optimizer's: gradients with respect to this worker's copies."""
        return self._base.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Build a step on this worker's copies.

        Args:
            grads_and_vars: (gradient, local variable) pairs; a gradient is a tensor, a
                `tf.IndexedSlices` or None.
            global_step: A variable that counts rounds.
            name: Name of the op.

        Returns:
            The op of the step. The rounds are the hook's.

        Raises:
            ValueError: If there is no pair or no global step, or a variable is none of the
                getter's.
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise ValueError("Must supply at least one variable. Received: no gradients.")
        if not isinstance(global_step, tf.Variable):
            raise ValueError(
                "Global step is required: a variable, which counts the rounds. "
                f"Received: global_step={global_step!r}; pass "
                "tf.compat.v1.train.get_or_create_global_step()."
            )
        foreign = [variable.name for _, variable in pairs if variable not in self.global_variables]
        if foreign:
            raise ValueError(
                "Each variable must have a global copy. Received: "
                f"{', '.join(map(repr, foreign))}; create it with tf.compat.v1.get_variable in a "
                "variable_scope with the custom getter."
            )
        with self._on_worker():
            with self._local_state():
                update = self._base.apply_gradients(pairs)
            with tf.control_dependencies([update]):
                before = tf.raw_ops.ResourceCountUpTo(
                    resource=self.local_step.handle, limit=NO_LIMIT, T=tf.int64
                )
            self._counts[before.op] = before + 1
            if self.rounds is None:
                self._build(global_step)
            return tf.group(before.op, name=name or self._name)

    def get_init_op(self) -> tf.Operation:
        """An op that sets this worker's copies to the global values; the hook has its own."""
        with self._on_worker():
            targets = list(self.global_variables.values())
            values = read_global(group_variables(targets), targets)
            return tf.group(*self._take_over(values))

    def set_local_step(self, session: v1.Session, step: int) -> None:
        """Go on counting own steps from a number, such as the one that a checkpoint is for.

        Args:
            session: A session without hooks.
            step: Own steps so far, >= 0.
        """
        session.run(self._set_step, {self._to_step: step})

    def make_session_run_hook(self, *, starts: bool | None = None) -> v1.train.SessionRunHook:
        """The hook that every worker's session needs: it starts this worker and does the rounds.

        Args:
            starts: Whether it runs `start_op`; None: if this is the chief.
        """
        return RoundsHook(
            self._built,
            self._counts,
            interval_steps=self._interval,
            starts=self._chief if starts is None else starts,
            patience=self._patience,
        )

    def _built(self) -> Rounds:
        if self.rounds is None:
            raise ValueError(
                "`apply_gradients` or `minimize` must come first: it makes what the rounds need. "
                "Received: neither was called."
            )
        return self.rounds

    def _build(self, global_step: tf.Variable) -> None:
        check_copies(self.global_variables)
        targets = list(self.global_variables.values())
        with tf.device(global_step.device):
            self.members = Members(self._workers, f"{self._name}/members")
        self._update = RoundUpdate(self, targets, self._block, self._use_locking)
        self._facts, self._global_step = RoundFacts(self._name), global_step
        self.rounds = Rounds(
            list(self.global_variables),
            targets,
            self._update.finish,
            self._receive,
            join=lambda values, *_: self._take_over(values),
            members=self.members,
            worker=self._worker,
            global_step=global_step,
            keep_mean=self._block is not None,
            more=self._update.variables,
            name=f"{self._name}/rounds",
        )
        self.leave_op = self.rounds.leave_op

    def _receive(
        self, values: Sequence[tf.Tensor], means: Sequence[tf.Tensor], waited_s: tf.Tensor
    ) -> list[tf.Operation]:
        """Note how far this worker was from the mean, and take the global values."""
        off = []
        for local, mean in zip(self.global_variables, means or values, strict=True):
            dtype = compute_dtype(local.dtype)
            off.append(tf.cast(local.read_value(), dtype) - tf.cast(mean, dtype))
        known = self._facts.keep(
            distance=tf.sqrt(sum_of_squares(off)),
            block_update=self._update.norm(),
            wait_s=waited_s,
            members=self.members,
            global_step=self._global_step,
        )
        with tf.control_dependencies(off):
            return [known, *self._take_over(values)]

    def _take_over(self, values: Sequence[tf.Tensor]) -> list[tf.Operation]:
        return [
            local.assign(value, self._use_locking, read_value=False)
            for local, value in zip(self.global_variables, values, strict=True)
        ]

    @contextmanager
    def _on_worker(self) -> Iterator[None]:
        """On the worker's device, whatever scopes for names and devices are open."""
        with v1.name_scope(None), v1.name_scope(f"{self._name}/"), tf.device(self.worker_device):
            yield

    @contextmanager
    def _local_state(self) -> Iterator[None]:
        """What is made within belongs to this worker: no checkpoint of the chief knows it."""

        def local(next_creator: Any, **kwargs: Any) -> tf.Variable:
            kwargs["collections"] = [
                v1.GraphKeys.LOCAL_VARIABLES,
                *(c for c in kwargs.get("collections") or () if c not in _SHARED),
            ]
            variable = next_creator(**kwargs)
            self._own.append(variable)
            return variable

        with v1.variable_creator_scope(local):
            yield
