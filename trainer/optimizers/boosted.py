"""Correlation-boosted optimizers for ``tf.compat.v1``; the idea is TensorFlowRS's."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import POSITIVE, check_hyperparameter, compute_dtype
from deepinsight.trainer.optimizers._boosted import BoostedOptimizer


class BoostedGradientDescentOptimizer(BoostedOptimizer):
    r"""Gradient descent with a stale gradient scaled by how the variable moved meanwhile.

    With :math:`\Delta = w - w_{bak(m)}`, the movement of the variable since worker m pulled, and
    :math:`\tau` updates by others meanwhile, per element:

    .. math::

        c \leftarrow d c + (1 - d)\, g \Delta; \quad
        s \leftarrow d s + (1 - d)\, g^2; \quad
        q \leftarrow d q + (1 - d)\, \Delta^2 \\
        \rho = c / (\sqrt s \sqrt q + \epsilon) \in [-1, 1]; \quad
        g' = g\,\Bigl(1 + \frac{\lambda}{1 + \tau / \tau_0}\, \rho\Bigr); \quad
        w \leftarrow w - \eta g'; \quad w_{bak(m)} \leftarrow w

    Where the others have already moved the variable against g, the gradient shrinks; where they
    moved it along g, it grows. It never changes its sign, and :math:`\lambda = 0` or one worker
    is gradient descent. The idea is TensorFlowRS's, which published no formula; this one is ours.
    With a sparse gradient only its rows are touched, all state included.

    Slots, on the variable's device and in checkpoints: ``backup_0`` … ``backup_<num_workers-1>``
    (dtype of the variable); ``correlation``, ``gradient_square``, ``movement_square``, shared by
    the workers (float32, for float64 variables float64); ``pushes_by_others`` (int64
    ``[num_workers]``), unless the staleness is handed over. In a graph the hook records
    ``optimizer/correlation``, ``optimizer/compensation_ratio`` and
    ``optimizer/nonfinite_gradients``, per variable.

    Args:
        learning_rate: :math:`\eta` > 0; a number, a tensor or a callable that returns one, as all
            hyperparameters.
        num_workers: Number of workers, >= 1.
        boost: :math:`\lambda` in [0, 1).
        staleness_scale: :math:`\tau_0` > 0, in updates; there the effect has halved.
        decay: :math:`d` in [0, 1).
        correlation_epsilon: :math:`\epsilon` > 0.
        use_locking: If True, a sparse update holds the variables' locks alone. Dense ones always
            do.
        name: Name of the optimizer, the prefix of its slots' names.

    Raises:
        ValueError: If a number is out of range.

    Example:
        Worker 0 moved the weight down; worker 1's gradient wants that, too, so it shrinks, from 2
        to 2 (1 - 0.9035 · 0.5 / (1 + 1/10)):

        >>> w = tf.Variable([3.0])
        >>> optimizer = BoostedGradientDescentOptimizer(1.0, num_workers=2)
        >>> optimizer.apply_gradients([(tf.constant([1.0]), w)], worker_index=0)
        >>> optimizer.apply_gradients([(tf.constant([2.0]), w)], worker_index=1)
        >>> w.numpy().round(4)
        array([0.8214], dtype=float32)

    References:
        Zheng et al., 2017, arXiv:1609.08326, whose compensation this bounds.
    """

    KERNEL = "boosted_gradient_descent"

    def __init__(
        self,
        learning_rate: Any,
        num_workers: int = 1,
        *,
        boost: Any = 0.5,
        staleness_scale: Any = 10.0,
        decay: Any = 0.9,
        correlation_epsilon: Any = 1e-12,
        use_locking: bool = False,
        name: str = "BoostedGradientDescent",
    ) -> None:
        super().__init__(
            name,
            use_locking,
            num_workers,
            learning_rate=learning_rate,
            boost=boost,
            staleness_scale=staleness_scale,
            decay=decay,
            correlation_epsilon=correlation_epsilon,
        )


class BoostedMomentumOptimizer(BoostedOptimizer):
    r"""Momentum on the boosted gradient of `BoostedGradientDescentOptimizer`.

    .. math::  v \leftarrow \mu v + g'; \quad w \leftarrow w - \eta v

    With Nesterov :math:`w \leftarrow w - \eta (g' + \mu v)`. The slot of v is ``momentum``.
    :math:`\lambda = 0` is `tf.compat.v1.train.MomentumOptimizer`.

    Args:
        learning_rate: :math:`\eta` > 0.
        momentum: :math:`\mu` in [0, 1).
        num_workers: Number of workers, >= 1.
        boost: As in `BoostedGradientDescentOptimizer`, as the others up to `use_locking`.
        staleness_scale: :math:`\tau_0` > 0.
        decay: :math:`d` in [0, 1).
        correlation_epsilon: :math:`\epsilon` > 0.
        use_locking: As there.
        name: Name of the optimizer, the prefix of its slots' names.
        use_nesterov: Whether to look ahead.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> w = tf.Variable([1.0])
        >>> optimizer = BoostedMomentumOptimizer(0.1, 0.9, num_workers=2)
        >>> optimizer.apply_gradients([(tf.constant([1.0]), w)], worker_index=1)
        >>> w.numpy()
        array([0.9], dtype=float32)

    References:
        Sutskever et al., 2013, On the importance of initialization and momentum in deep learning.
        ICML.
    """

    KERNEL = "boosted_momentum"
    SLOTS = ("momentum",)
    SCALARS = ("momentum",)

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any,
        num_workers: int = 1,
        *,
        boost: Any = 0.5,
        staleness_scale: Any = 10.0,
        decay: Any = 0.9,
        correlation_epsilon: Any = 1e-12,
        use_locking: bool = False,
        name: str = "BoostedMomentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            name,
            use_locking,
            num_workers,
            learning_rate=learning_rate,
            momentum=momentum,
            boost=boost,
            staleness_scale=staleness_scale,
            decay=decay,
            correlation_epsilon=correlation_epsilon,
        )
        self._use_nesterov = use_nesterov

    def _attributes(self) -> dict[str, bool]:
        return super()._attributes() | {"use_nesterov": self._use_nesterov}


class BoostedAdagradOptimizer(BoostedOptimizer):
    r"""Adagrad on the boosted gradient of `BoostedGradientDescentOptimizer`.

    .. math::  a \leftarrow a + g'^2; \quad w \leftarrow w - \eta g' / (\sqrt a + \epsilon_a)

    The slot of a is ``accumulator``. :math:`\lambda = 0` is TensorFlow's ``ApplyAdagradV2``.

    Args:
        learning_rate: :math:`\eta` > 0.
        initial_accumulator_value: First value of a, > 0.
        num_workers: Number of workers, >= 1.
        boost: As in `BoostedGradientDescentOptimizer`, as the others up to `use_locking`.
        staleness_scale: :math:`\tau_0` > 0.
        decay: :math:`d` in [0, 1).
        correlation_epsilon: :math:`\epsilon` > 0.
        use_locking: As there.
        name: Name of the optimizer, the prefix of its slots' names.
        epsilon: :math:`\epsilon_a` >= 0.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> w = tf.Variable([1.0])
        >>> optimizer = BoostedAdagradOptimizer(0.1, num_workers=2)
        >>> optimizer.apply_gradients([(tf.constant([1.0]), w)], worker_index=1)
        >>> w.numpy().round(4)
        array([0.9047], dtype=float32)

    References:
        Duchi et al., 2011, Adaptive Subgradient Methods for Online Learning. JMLR 12.
    """

    KERNEL = "boosted_adagrad"
    SLOTS = ("accumulator",)
    SCALARS = ("epsilon",)

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        num_workers: int = 1,
        *,
        boost: Any = 0.5,
        staleness_scale: Any = 10.0,
        decay: Any = 0.9,
        correlation_epsilon: Any = 1e-12,
        use_locking: bool = False,
        name: str = "BoostedAdagrad",
        epsilon: Any = 1e-7,
    ) -> None:
        super().__init__(
            name,
            use_locking,
            num_workers,
            learning_rate=learning_rate,
            epsilon=epsilon,
            boost=boost,
            staleness_scale=staleness_scale,
            decay=decay,
            correlation_epsilon=correlation_epsilon,
        )
        self._initial = check_hyperparameter(
            "initial_accumulator_value", initial_accumulator_value, POSITIVE
        )

    def _create_state(self, var: tf.Variable) -> None:
        self._slot(var, "accumulator", self._initial)
        super()._create_state(var)


class BoostedAdamOptimizer(BoostedOptimizer):
    r"""Adam on the boosted gradient of `BoostedGradientDescentOptimizer`.

    .. math::

        m \leftarrow m + (1 - \beta_1)(g' - m); \quad v \leftarrow v + (1 - \beta_2)(g'^2 - v) \\
        w \leftarrow w - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}
        \frac{m}{\sqrt v + \hat\epsilon}

    The slots are ``m`` and ``v``; the powers of the betas are variables beside the first variable,
    raised once per update, whichever worker makes it. :math:`\lambda = 0` is
    `tf.compat.v1.train.AdamOptimizer` for dense gradients; a sparse gradient touches its rows only
    (TensorFlow's decays the moments of all rows).

    Args:
        learning_rate: :math:`\eta` > 0.
        beta1: :math:`\beta_1` in [0, 1).
        beta2: :math:`\beta_2` in [0, 1).
        epsilon: :math:`\hat\epsilon` >= 0.
        num_workers: Number of workers, >= 1.
        boost: As in `BoostedGradientDescentOptimizer`, as the others up to `use_locking`.
        staleness_scale: :math:`\tau_0` > 0.
        decay: :math:`d` in [0, 1).
        correlation_epsilon: :math:`\epsilon` > 0.
        use_locking: As there.
        name: Name of the optimizer, the prefix of its slots' names.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> w = tf.Variable([1.0])
        >>> optimizer = BoostedAdamOptimizer(0.1, num_workers=2)
        >>> optimizer.apply_gradients([(tf.constant([5.0]), w)], worker_index=1)
        >>> w.numpy().round(4)
        array([0.9], dtype=float32)

    References:
        Kingma and Ba, 2015, Adam: A Method for Stochastic Optimization. ICLR. arXiv:1412.6980.
    """

    KERNEL = "boosted_adam"
    SLOTS = ("m", "v")
    SCALARS = ("beta1", "beta2", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        num_workers: int = 1,
        *,
        boost: Any = 0.5,
        staleness_scale: Any = 10.0,
        decay: Any = 0.9,
        correlation_epsilon: Any = 1e-12,
        use_locking: bool = False,
        name: str = "BoostedAdam",
    ) -> None:
        super().__init__(
            name,
            use_locking,
            num_workers,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            boost=boost,
            staleness_scale=staleness_scale,
            decay=decay,
            correlation_epsilon=correlation_epsilon,
        )

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        super()._create_slots(var_list)
        # The same variable on every worker, so that all find the powers on one server.
        first = min(var_list, key=lambda var: var.name)
        exact = any(compute_dtype(var.dtype) == tf.float64 for var in var_list)
        dtype = tf.float64 if exact else tf.float32
        for beta in ("beta1", "beta2"):
            value = self._hyper[beta]
            initial = tf.cast(value() if callable(value) else value, dtype)
            self._create_non_slot_variable(initial, f"{beta}_power", first)

    def _power(self, beta: str) -> tf.Variable:
        with tf.init_scope():
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            return self._get_non_slot_variable(f"{beta}_power", graph=graph)

    def _prepare(self) -> None:
        super()._prepare()
        # Not before the gradients are there: others raise the powers while they are computed.
        with tf.control_dependencies(self._arrivals):
            self._powers = {beta: self._power(beta).read_value() for beta in ("beta1", "beta2")}

    def _base_scalars(self, var: tf.Variable) -> Sequence[tf.Tensor]:
        powers = [self._scalar_of(f"{b}_power", p, var) for b, p in self._powers.items()]
        return [*powers, *super()._base_scalars(var)]

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> tf.Operation:
        updates = list(update_ops)
        with tf.control_dependencies(updates):
            for beta in ("beta1", "beta2"):
                power = self._power(beta)
                with tf.device(power.device):
                    raised = power.read_value() * tf.cast(self._now[beta], power.dtype)
                    updates.append(power.assign(raised, read_value=False))
        return tf.group(*updates, name=name_scope)
