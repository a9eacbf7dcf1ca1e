"""K-FAC for dense layers, in one process or shared out among the workers of a cluster."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import _is_taken
from deepinsight.trainer.optimizers._arguments import whole
from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.kfac.factors import batch_moments, sampled_loss
from deepinsight.trainer.optimizers.kfac.layers import DenseLayer, check_layers
from deepinsight.trainer.optimizers.kfac.options import (
    check_base,
    check_number,
    check_role,
)
from deepinsight.trainer.optimizers.kfac.precondition import check_gradients, precondition
from deepinsight.trainer.optimizers.kfac.state import Counters, Schedule, State
from deepinsight.trainer.optimizers.kfac.trace import trace_state, trace_step

__all__ = ["DenseLayer", "KFACOptimizer", "sampled_loss"]

v1 = tf.compat.v1


class KFACOptimizer(v1.train.Optimizer):
    r"""Scale the gradients of dense layers by their Kronecker-factored curvature.

    For each layer, with the bias as last row of the kernel and a 1 appended to the inputs a:

    .. math::

        A = E[a a^T], \quad S = E[s s^T], \quad
        \Delta = (A + \pi \sqrt\lambda I)^{-1} \nabla W (S + \sqrt\lambda / \pi\, I)^{-1}, \quad
        \pi = \sqrt{\frac{tr A / \dim A}{tr S / \dim S}}

    where s is the gradient of an example's Fisher loss by the pre-activations. The base optimizer
    gets :math:`\nu \Delta`, with :math:`\nu = \min(1, \sqrt{c / (\eta^2 \sum_l \langle \Delta_l,
    \nabla W_l \rangle)})`; without a cap c, :math:`\nu = 1`. Variables of no layer get the base's
    plain update. Until the covariances hold `burn_in` batches and have been inverted, so do the
    layers, but for the cap: :math:`\Delta_l = \nabla W_l` then.

    A and S are running means: of all batches at first, then with the weight `covariance_decay` of
    the past. They are inverted in float64, whatever the layers' dtype.

    On a cluster the work can be shared out: a rule with ``role="gradient"`` only multiplies with
    the inverses, where the variables are; other workers run `statistics_op` and `inverse_op` of
    their own optimizer on the same variables. Each goes on while the others are gone. See
    `deepinsight.trainer.optimizers.kfac.workers`.

    State, in checkpoints: slots ``input_covariance``, ``output_covariance``, ``input_inverse`` and
    ``output_inverse`` of the kernels; variables ``<name>/covariance_updates``, ``<name>/steps``
    and ``<name>/inverted_at``.

    Streams for the session hook: ``sync/damping``, ``sync/fisher_norm`` (:math:`\sum_l \langle
    \Delta_l, \nabla W_l \rangle`, NaN during burn-in), ``sync/step_scale`` (:math:`\nu`),
    ``sync/inverse_age`` (steps since the inverses were computed, NaN before), and
    ``sync/covariance_updates``.

    Args:
        opt_or_learning_rate: A `GradientDescentOptimizer` or `MomentumOptimizer` of
            ``tf.compat.v1.train``; or a learning rate > 0, for the latter.
        layers: The layers, `DenseLayer`; each variable in one of them at most.
        fisher_loss: What the gradients s are of: the loss of each example, ``[n]``, or the mean
            over the examples, a scalar. For the Fisher matrix give `sampled_loss`.
        empirical: Instead of `fisher_loss`: take the training loss of `minimize` or
            `compute_gradients`, with the labels of the data (the empirical Fisher matrix).
        damping: :math:`\lambda`, > 0.
        covariance_decay: Weight of the past in the covariances, in [0, 1).
        momentum: With a learning rate: the momentum, in [0, 1); None: 0.9.
        inverse_every: Steps between two inversions, >= 1.
        covariance_every: Steps between two batches in the covariances, >= 1.
        burn_in: Batches in the covariances before they are inverted, >= 0; 0 is as 1.
        norm_constraint: c, > 0; None: no cap.
        role: ``"all"``: `apply_gradients` keeps covariances and inverses up to date as well;
            ``"gradient"``: it uses what others write; ``"statistics"``, ``"inverse"`` or
            ``"statistics+inverse"``: there is no `apply_gradients`.
        name: Name of the optimizer, the prefix of its variables' names.

    Raises:
        ValueError: If an argument is out of range or a layer does not fit; the message names it.

    Example:
        >>> import numpy as np
        >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ...     kernel = tf.compat.v1.get_variable("w", [1, 1], use_resource=True,
        ...         initializer=tf.compat.v1.zeros_initializer())
        ...     inputs = tf.constant([[1.0], [-1.0]])
        ...     outputs = inputs @ kernel
        ...     loss = tf.reduce_mean(tf.square(outputs - 3 * inputs) / 2)
        ...     optimizer = KFACOptimizer(
        ...         1.0, [DenseLayer(kernel, None, inputs, outputs)],
        ...         fisher_loss=sampled_loss(outputs, "normal", seed=1),
        ...         damping=1e-4, momentum=0.0, burn_in=200)
        ...     statistics, inverse = optimizer.statistics_op(), optimizer.inverse_op()
        ...     step = optimizer.minimize(loss)
        ...     session.run(tf.compat.v1.global_variables_initializer())
        ...     for _ in range(200):
        ...         _ = session.run(statistics)
        ...     _ = session.run(step)
        ...     print(np.round(session.run(kernel), 0))
        [[3.]]

    References:
        Ba, Grosse, Martens, 2017, Distributed Second-order Optimization using Kronecker-factored
        Approximations, ICLR. Martens, Grosse, 2015, arXiv:1503.05671.
    """

    def __init__(
        self,
        opt_or_learning_rate: v1.train.Optimizer | float,
        layers: Iterable[DenseLayer],
        *,
        fisher_loss: tf.Tensor | None = None,
        empirical: bool = False,
        damping: float = 0.03,
        covariance_decay: float = 0.95,
        momentum: float | None = None,
        inverse_every: int = 10,
        covariance_every: int = 1,
        burn_in: int = 20,
        norm_constraint: float | None = None,
        role: str = "all",
        name: str = "KFAC",
    ) -> None:
        super().__init__(False, name)
        self._base = check_base(opt_or_learning_rate, momentum)
        self.role = check_role(role)
        self._layers = check_layers(layers, statistics=role not in ("gradient", "inverse"))
        if empirical and fisher_loss is not None:
            raise ValueError(
                "`empirical` must be False where `fisher_loss` is given: the empirical Fisher "
                "matrix is that of the training loss. Received: both."
            )
        self._fisher_loss, self._empirical = fisher_loss, empirical
        self._damping = check_number("damping", damping, "> 0", lambda x: x > 0)
        self._decay = check_number(
            "covariance_decay", covariance_decay, "in [0, 1)", lambda x: 0 <= x < 1
        )
        self._cap = norm_constraint
        if norm_constraint is not None:
            self._cap = check_number("norm_constraint", norm_constraint, "> 0", lambda x: x > 0)
        self.schedule = Schedule(
            whole("covariance_every", covariance_every, 1),
            whole("inverse_every", inverse_every, 1),
            max(1, whole("burn_in", burn_in, 0)),
        )
        self._made: State | None = None
        self._track_trackable(self._base, "base")

    @property
    def state(self) -> State:
        """The variables that the roles share, made at the first use."""
        if self._made is None:
            if tf.executing_eagerly():
                raise ValueError(
                    "KFACOptimizer needs a graph, whose tensors its layers are. Received: eager "
                    "execution; build under `with tf.Graph().as_default()`."
                )
            with tf.init_scope():
                self._made = State(self, self._layers)
        return self._made

    def variables(self) -> list[tf.Variable]:
        """The factors, inverses and counters, and the base optimizer's variables."""
        return [*super().variables(), *self._base.variables()]

    def compute_gradients(
        self, loss: Any, *arguments: Any, **options: Any
    ) -> list[GradientAndVariable]:
        """As the base optimizer's; notes the loss where the Fisher matrix is the empirical one."""
        if self._empirical:
            self._fisher_loss = loss
        return self._base.compute_gradients(loss, *arguments, **options)

    def statistics_op(self, loss: tf.Tensor | None = None) -> tf.Operation:
        """Take the layers' batch into the covariances.

        Args:
            loss: Instead of the constructor's `fisher_loss`.

        Returns:
            The op; it raises no counter but ``<name>/covariance_updates``.

        Raises:
            ValueError: If there is no loss, or it does not depend on a layer.
        """
        check_layers(self._layers, statistics=True)
        with tf.name_scope(f"{self._name}/statistics"):
            moments = batch_moments(self._layers, self._loss(loss))
            return self.state.take_moments(moments, self._decay)

    def inverse_op(self, *, when_due: bool = True) -> tf.Operation:
        """Invert the covariances and replace the inverses.

        Args:
            when_due: Do so only after the burn-in and if the inverses are at least `inverse_every`
                steps old; else whenever it runs.

        Returns:
            The op.

        Raises:
            tf.errors.InvalidArgumentError: When it runs: if a damped covariance is not positive
                definite; the message names the layer, and no inverse has been replaced.
        """
        with tf.name_scope(f"{self._name}/inverse"):
            counters = self.state.read_counters()
            if when_due:
                return self._invert_when_due(counters)
            return self.state.renew_inverses(self._damping, counters.steps)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Precondition the layers' gradients and hand all to the base optimizer.

        Args:
            grads_and_vars: (gradient, variable) pairs; gradients of layers must be dense, those of
                other variables may be sparse or None.
            global_step: Variable to raise by one.
            name: Name of the op.

        Returns:
            The op of the step.

        Raises:
            ValueError: If the role computes no gradients, or a gradient does not fit.
            tf.errors.InvalidArgumentError: When the op runs: as for `inverse_op`.
        """
        pairs = list(grads_and_vars)
        taken = any(_is_taken(grad) for grad, _ in pairs)
        self._check_gradients(pairs, taken)
        state = self.state
        with tf.name_scope(name or self._name) as scope:
            scaled, facts = precondition(
                state,
                self._layers,
                pairs,
                self._renew() if self.role == "all" else [],
                schedule=self.schedule,
                learning_rate=self._base._learning_rate,
                norm_constraint=self._cap,
            )
        update = self._base.apply_gradients(scaled, global_step)
        with tf.name_scope(scope):
            # The age is told as it was, so the counters are read before one is raised.
            with tf.device(state.home), tf.control_dependencies([update, *facts.counters]):
                counted = state.steps.assign_add(1, read_value=False)
            kept = state.kept_facts if taken else None
            done = trace_step(state, facts, self._damping, [update, counted], kept)
            return tf.group(*done, name="step")

    def trace(self) -> None:
        """Offer what a worker without gradients knows to the session hook."""
        with tf.name_scope(f"{self._name}/trace"):
            trace_state(self.state, self._damping)

    def _loss(self, loss: tf.Tensor | None) -> tf.Tensor:
        loss = self._fisher_loss if loss is None else loss
        if loss is None:
            raise ValueError(
                "K-FAC must know what its covariances are of: give `fisher_loss="
                "sampled_loss(logits, …)`, or empirical=True and the training loss to `minimize` "
                "or `compute_gradients`. Received: neither."
            )
        return loss

    def _invert_when_due(self, counters: Counters) -> tf.Operation:
        def renew() -> tf.Tensor:
            with tf.control_dependencies(
                [self.state.renew_inverses(self._damping, counters.steps)]
            ):
                return tf.constant(True)

        return tf.cond(counters.due(self.schedule), renew, lambda: tf.constant(False)).op

    def _renew(self) -> list[tf.Operation]:
        """Bring covariances and inverses up to date, as far as they are due."""
        state, every = self.state, self.schedule.covariance_every
        moments = batch_moments(self._layers, self._loss(None))
        if every == 1:
            taken = state.take_moments(moments, self._decay)
        else:

            def take() -> tf.Tensor:
                with tf.control_dependencies([state.take_moments(moments, self._decay)]):
                    return tf.constant(True)

            due = tf.equal(state.read_counters().steps % every, 0)
            taken = tf.cond(due, take, lambda: tf.constant(False)).op
        with tf.control_dependencies([taken]):
            counters = state.read_counters()
        return [taken, self._invert_when_due(counters)]

    def _check_gradients(self, pairs: Sequence[GradientAndVariable], taken: bool) -> None:
        if self.role not in ("all", "gradient"):
            raise ValueError(
                "`apply_gradients` needs the role 'all' or 'gradient'. "
                f"Received: role={self.role!r}; run `statistics_op` and `inverse_op`."
            )
        if taken and self.role == "all":
            raise ValueError(
                "Where gradients of several workers are averaged first, the update belongs to no "
                "batch, and cannot compute covariances. Received: role='all'; use role='gradient', "
                "and run `statistics_op` and `inverse_op` of another KFACOptimizer."
            )
        check_gradients(self._layers, pairs)
