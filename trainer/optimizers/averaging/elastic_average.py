"""Elastic averaging: workers train alone, each tied to a common centre (EASGD, EAMSGD)."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.cluster.members import Members, Patience
from deepinsight.trainer.optimizers._arguments import whole
from deepinsight.trainer.optimizers.averaging.elastic_checks import (
    check_base,
    check_getter,
    learning_rate,
    number,
)
from deepinsight.trainer.optimizers.averaging.elastic_exchange import Exchange, Tie, fetch_centers
from deepinsight.trainer.optimizers.averaging.elastic_getter import ElasticAverageCustomGetter
from deepinsight.trainer.optimizers.averaging.elastic_rounds import make_rounds
from deepinsight.trainer.optimizers.averaging.elastic_saver import swapping_saver
from deepinsight.trainer.optimizers.averaging.elastic_state import (
    NAN,
    OwnState,
    add_penalty,
    is_nesterov,
    keep_local,
    keep_look_ahead,
    with_look_ahead,
)
from deepinsight.trainer.optimizers.averaging.local_copies import (
    GLOBAL_VARIABLE_NAME,
    VariableMap,
    check_copies,
)
from deepinsight.trainer.optimizers.averaging.rounds import Rounds
from deepinsight.trainer.optimizers.averaging.rounds_hook import RoundsHook
from deepinsight.trainer.optimizers.exchange import GradientAndVariable

__all__ = [
    "GLOBAL_VARIABLE_NAME",
    "LOCAL_VARIABLE_NAME",
    "ElasticAverageCustomGetter",
    "ElasticAverageOptimizer",
]

#: Name scope of a worker's copies of the centre, where it has any.
LOCAL_VARIABLE_NAME = "local_center_variable"
PATIENCE = Patience()
v1 = tf.compat.v1


class ElasticAverageOptimizer(v1.train.Optimizer):
    r"""Let a worker train its own variables, and tie them to a centre by an elastic force.

    A worker applies `opt` to variables of its own, at no cost in messages. After every
    `communication_period` of its steps its weights x and the centre c, which the parameter servers
    hold, exchange:

    .. math::

        d = x - c; \qquad x \leftarrow x - \alpha d; \qquad c \leftarrow c + \alpha d

    and the global step, which counts exchanges, rises by one. The exchange is made by the session
    hook, after the step; without the hook there is none.

    Asynchronous: each worker exchanges when it is there, with the centre as it is then. The servers
    move the centre and tell the worker the same d under a lock.

    Synchronous: rounds. All live workers take d from the same centre, then
    :math:`c \leftarrow c + \alpha \sum d`; a worker that is too late for a round leaves weights and
    centre as they are. Workers that do not move for `patience.timeout_s` are left behind; they are
    members again when they come back.

    The penalty :math:`\frac\rho2 \|x - c\|^2` adds :math:`\rho (x - c)` to each gradient, with the
    centre of the worker's last exchange; a sparse gradient becomes dense by it. It belongs to the
    synchronous form.

    With ``MomentumOptimizer(…, use_nesterov=True)`` this is EAMSGD:

    .. math::  v \leftarrow \delta v - \eta \nabla f(x + \delta v); \qquad x \leftarrow x + v

    TensorFlow's variable then holds the look-ahead :math:`x + \delta v`, where gradients are taken;
    what is exchanged is x. The paper takes :math:`\delta` = 0.99.

    Variables that `opt` makes become local variables: every worker has its own and initialises
    them itself. The hook sets every worker's weights to the centre when its session is created,
    also after a restart. It records ``sync/distance_to_center`` (norm of d over all variables at
    the last exchange), ``sync/rounds`` (exchanges of this worker) and, synchronous,
    ``sync/wait_time`` and ``sync/live_workers``.

    Args:
        opt: The optimizer of the worker's own variables.
        num_worker: M, number of workers, >= 1.
        ea_custom_getter: The getter with which the model's variables are made.
        communication_period: :math:`\tau`, own steps between exchanges, >= 1.
        moving_rate: :math:`\alpha` in [0, 1]; None: 0.9 / communication_period / num_worker.
        rho: :math:`\rho` >= 0. None: synchronous :math:`\alpha/\eta` with the learning rate of
            `opt`, else 0. (TensorFlow 1.15 took :math:`\alpha/\eta` always, and advised 0 for the
            asynchronous form.)
        use_locking: Kept for TensorFlow 1.15: an exchange always locks the centre.
        synchronous: Whether workers exchange in rounds; `global_step`, which counts them, is needed
            then. (In TensorFlow 1.15 they only began together, and exchanged as they came.)
        name: Name of the optimizer.
        patience: How long a round waits for workers that do not move.
        kernel: Whether asynchronous exchanges use this project's kernel, which passes over the
            centre once; every server process must have called
            `deepinsight.trainer.kernels.ops` then.

    Attributes:
        members: Whom rounds wait for; None where there are none. It is there, as what the
            properties return, once the hook was made and gradients were applied.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> with tf.Graph().as_default():
        ...     getter = ElasticAverageCustomGetter(worker_device="/device:CPU:0")
        ...     with tf.compat.v1.variable_scope("", custom_getter=getter):
        ...         w = tf.compat.v1.get_variable("w", initializer=[8.0])
        ...     step = tf.compat.v1.train.get_or_create_global_step()
        ...     base = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        ...     optimizer = ElasticAverageOptimizer(
        ...         base, 1, getter, communication_period=2, moving_rate=0.25
        ...     )
        ...     train_op = optimizer.minimize(-2 * w[0], step)
        ...     hook = optimizer.make_session_run_hook(is_chief=True, task_index=0)
        ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        ...         for _ in range(2):
        ...             _ = session.run(train_op)
        ...         print(*session.run([w, optimizer.global_variables[w], step]))
        [11.] [9.] 1

    References:
        Zhang, Choromanska, LeCun, 2015, Deep learning with Elastic Averaging SGD. NeurIPS.
        arXiv:1412.6651.
    """

    #: :math:`\beta` of the paper: what M workers take of the distance per own step.
    BETA = 0.9

    def __init__(
        self,
        opt: v1.train.Optimizer,
        num_worker: int,
        ea_custom_getter: ElasticAverageCustomGetter,
        communication_period: int = 10,
        moving_rate: float | None = None,
        rho: Any = None,
        use_locking: bool = True,
        synchronous: bool = False,
        name: str = "ElasticAverageOptimizer",
        *,
        patience: Patience = PATIENCE,
        kernel: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        check_base(opt)
        check_getter(ea_custom_getter)
        self._opt, self._getter, self._kernel = opt, ea_custom_getter, bool(kernel)
        self._num_worker = whole("num_worker", num_worker, 1)
        self._period = whole("communication_period", communication_period, 1)
        if moving_rate is None:
            moving_rate = self.BETA / self._period / self._num_worker
        self._moving_rate = number("moving_rate", moving_rate, 1.0)
        if rho is None:
            rho = self._moving_rate / learning_rate(opt) if synchronous else 0.0
        self._rho = rho if tf.is_tensor(rho) else number("rho", rho, math.inf)
        self._synchronous, self._patience = bool(synchronous), patience
        self._state = OwnState(ea_custom_getter.worker_device, name)
        self._known, self._trained = VariableMap(), VariableMap()
        self._counts: dict[tf.Operation, tf.Tensor] = {}
        self._global_step: tf.Variable | None = None
        self._worker: int | None = None
        self._turns: Rounds | Exchange | None = None
        self.members: Members | None = None
        self._track_trackable(opt, "opt")

    @property
    def global_variables(self) -> Mapping[tf.Variable, tf.Variable]:
        """The centre of each worker's variable."""
        return self._getter.global_variables

    @property
    def exported(self) -> dict[str, tf.Variable]:
        """The centres by the names of the variables that the model asked for."""
        return {local.op.name: center for local, center in self.global_variables.items()}

    @property
    def local_step(self) -> tf.Variable:
        """Own steps of this worker in this session: an int64 scalar on the worker."""
        return self._state.local_step

    @property
    def local_variables(self) -> list[tf.Variable]:
        """State of this worker: its weights, and what `opt` keeps beside them."""
        return [*self.global_variables, *self._opt.variables()]

    @property
    def launch_variables(self) -> list[tf.Variable]:
        """Variables that belong to one launch: set by `start_op`, in no checkpoint."""
        turns = self._built()
        if isinstance(turns, Exchange):
            return []
        return [*turns.variables, *self.members.variables]

    @property
    def start_op(self) -> tf.Operation | None:
        """What the chief runs once per launch, after variables were initialised or restored."""
        turns = self._built()
        return None if isinstance(turns, Exchange) else turns.start_op

    @property
    def leave_op(self) -> tf.Operation:
        """What a worker runs when it takes part no more; the hook runs it at the end."""
        return self._built().leave_op

    def set_local_step(self, session: v1.Session, step: int) -> None:
        """Go on counting own steps from a number, such as the one that a checkpoint is for.

        Args:
            session: A session without hooks.
            step: Own steps so far, >= 0.
        """
        initializer = self.local_step.initializer
        session.run(initializer, {initializer.inputs[1]: step})

    def variables(self) -> list[tf.Variable]:
        """The variables of `opt`: this worker's own."""
        return self._opt.variables()

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable | None:
        """A slot of `opt`."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The names of the slots of `opt`."""
        return self._opt.get_slot_names()

    def compute_gradients(
        self,
        loss: Any,
        var_list: Sequence[tf.Variable] | None = None,
        gate_gradients: int = v1.train.Optimizer.GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: tf.Tensor | None = None,
    ) -> list[GradientAndVariable]:
        """Compute the gradients of a loss, and add those of the penalty.

        Args:
            loss: The loss.
            var_list: The variables; None: all trainable ones.
            gate_gradients: As in `tf.compat.v1.train.Optimizer.compute_gradients`.
            aggregation_method: As there.
            colocate_gradients_with_ops: As there.
            grad_loss: As there; the penalty is not multiplied by it.

        Returns:
            (gradient, variable) pairs. With a penalty all gradients are dense, and none is None.

        Raises:
            ValueError: If a variable has no centre.
        """
        pairs = self._opt.compute_gradients(
            loss,
            var_list,
            gate_gradients,
            aggregation_method,
            colocate_gradients_with_ops,
            grad_loss,
        )
        for _, variable in pairs:
            self._check_center(variable)
        return add_penalty(pairs, self._rho, self._known_center) if self._penalises else pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Apply gradients to the worker's variables, and count an own step.

        Args:
            grads_and_vars: (gradient, variable) pairs.
            global_step: Raised by one by every exchange (synchronous: by every round).
            name: Name of the op.

        Returns:
            The op of the worker's own step. When one is due, the hook exchanges after it.

        Raises:
            ValueError: If a variable has no centre, no variable has a gradient, or a round would
                have no global step.
        """
        if tf.executing_eagerly() or tf.inside_function():
            raise ValueError(
                "`apply_gradients` must be called in a tf.compat.v1 graph, outside functions: the "
                "exchange is made by a session hook. Received: a call elsewhere."
            )
        pairs = list(grads_and_vars)
        trained = [variable for gradient, variable in pairs if gradient is not None]
        if self._turns is not None and any(v not in self._trained for v in trained):
            raise ValueError(
                "`apply_gradients` must be called for all variables before what it exchanges is "
                "asked for. Received: a variable that it has not seen before."
            )
        if self._synchronous and not hasattr(global_step, "handle"):
            raise ValueError(
                "`global_step` must be a resource variable for synchronous exchanges: it counts "
                f"the rounds. Received: global_step={global_step!r}."
            )
        for variable in trained:
            self._trained.add(variable, self._check_center(variable))
        self._global_step = self._global_step if global_step is None else global_step
        applied = [keep_local(lambda: self._opt.apply_gradients(pairs))]
        if is_nesterov(self._opt):
            applied.append(keep_look_ahead(self._opt, self._state))
        with tf.control_dependencies(applied):
            count = self._state.count_step()
        if not self._counts:
            self._state.offer(self._synchronous)
        self._counts[count.op] = count + 1
        op = tf.group(count.op, name=name or self._name)
        v1.add_to_collection(v1.GraphKeys.TRAIN_OP, op)
        return op

    def get_init_op(self, task_index: int) -> tf.Operation:
        """The op that sets the worker's variables to the centre; the hook runs it at the start.

        Args:
            task_index: Index of this worker.

        Raises:
            ValueError: If there is no variable with a centre.
        """
        del task_index  # TensorFlow 1.15 had a barrier of all workers here
        check_copies(self.global_variables)
        with tf.init_scope(), v1.device(None):
            return tf.group(*fetch_centers(self._ties(self.global_variables)))

    def make_session_run_hook(
        self, is_chief: bool, task_index: int, *, starts: bool | None = None
    ) -> v1.train.SessionRunHook:
        """The hook that sets the worker's variables to the centre, and exchanges when it is due.

        Args:
            is_chief: Whether this worker is the chief.
            task_index: Index of this worker, in [0, num_worker), different for each.
            starts: Whether the hook runs `start_op`; None: if this is the chief.

        Raises:
            ValueError: If the index is out of range.
        """
        self._worker = operator.index(task_index)
        if not 0 <= self._worker < self._num_worker:
            raise ValueError(
                f"`task_index` must be >= 0 and < {self._num_worker}, the number of workers. "
                f"Received: task_index={task_index!r}."
            )
        return RoundsHook(
            self._built,
            self._counts,
            interval_steps=self._period,
            starts=bool(is_chief if starts is None else starts),
            patience=self._patience,
        )

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> v1.train.Saver:
        """A saver for evaluation and serving: it saves the centre under the variables' own names.

        A graph without elastic averaging restores such a checkpoint as its own.

        Args:
            var_list: Variables as for `tf.compat.v1.train.Saver`; None: all trainable ones that
                have been made so far. Those without a centre are saved as they are.
            name: Prefix of the saver's ops.
            **kwargs: More arguments of `tf.compat.v1.train.Saver`.

        Returns:
            The saver. What it restores goes into the centre.

        Raises:
            RuntimeError: If no variable has a centre yet.
        """
        if var_list is None:
            var_list = v1.trainable_variables()
        return swapping_saver(var_list, self.global_variables, name, kwargs)

    @property
    def _penalises(self) -> bool:
        return tf.is_tensor(self._rho) or self._rho > 0

    def _check_center(self, variable: tf.Variable) -> tf.Variable:
        if variable not in self.global_variables:
            raise ValueError(
                "A variable must have a centre to be trained with elastic averaging. Received: "
                f"{variable.name!r}; make it with tf.compat.v1.get_variable in a variable_scope "
                "with the ElasticAverageCustomGetter."
            )
        return self.global_variables[variable]

    def _known_center(self, local: tf.Variable) -> tf.Variable:
        """The worker's copy of the centre; it is not a number until the first was fetched."""
        if local not in self._known:
            with tf.init_scope(), v1.device(None), tf.device(local.device):
                nothing = tf.fill(local.shape, tf.constant(NAN, local.dtype.base_dtype))
            name = f"{LOCAL_VARIABLE_NAME}/{local.op.name}"
            self._known.add(local, self._state.make(name, nothing))
        return self._known[local]

    def _ties(self, variables: Iterable[tf.Variable]) -> list[Tie]:
        knows = self._penalises or self._synchronous
        return [
            Tie(local, self._check_center(local), self._known_center(local) if knows else None)
            for local in variables
        ]

    def _built(self) -> Rounds | Exchange:
        """What the hook does when an exchange is due; it is built when it is first asked for."""
        if self._turns is not None:
            return self._turns
        if not self._counts or self._worker is None:
            raise ValueError(
                "`apply_gradients` or `minimize`, and `make_session_run_hook`, must be called "
                "first: they make what exchanges need. Received: one of them was not."
            )
        check_copies(self._trained)
        with tf.init_scope(), v1.device(None), v1.name_scope(None), v1.name_scope(f"{self._name}/"):
            ties = self._ties(self._trained)
            others = self._ties(v for v in self.global_variables if v not in self._trained)
            if is_nesterov(self._opt):
                ties = [with_look_ahead(tie, self._opt, self._state) for tie in ties]
            if self._synchronous:
                self._turns = self._make_rounds(ties, others)
            else:
                self._turns = Exchange(
                    ties, self._moving_rate, self._global_step, self._note, others,
                    kernel=self._kernel,
                )  # fmt: skip
        return self._turns

    def _make_rounds(self, ties: Sequence[Tie], others: Sequence[Tie]) -> Rounds:
        with tf.device(self._global_step.device):
            self.members = Members(self._num_worker, f"{self._name}/members")
        with tf.device(self._getter.worker_device):
            return make_rounds(
                ties,
                self._moving_rate,
                members=self.members,
                worker=self._worker,
                global_step=self._global_step,
                note=self._note,
                others=others,
                name=self._name,
            )

    def _note(self, distance: tf.Tensor, waited_s: tf.Tensor | None = None) -> tf.Operation:
        live = None if self.members is None else self.members.count()
        return self._state.note_exchange(distance, waited_s, live)
