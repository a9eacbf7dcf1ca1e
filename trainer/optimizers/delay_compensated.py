"""Delay-compensated gradient descent (DC-ASGD) as a ``tf.compat.v1`` optimizer."""

from typing import Any, ClassVar

import tensorflow as tf

from deepinsight.trainer.optimizers._apply import NON_NEGATIVE, POSITIVE, SHARE
from deepinsight.trainer.optimizers._statistics import Statistic
from deepinsight.trainer.optimizers._workers import WorkerOptimizer


class DelayCompensatedGradientDescentOptimizer(WorkerOptimizer):
    r"""Gradient descent that corrects each gradient for what happened since it was computed.

    A worker m reads the weights, computes the gradient g there and pushes it; meanwhile others
    moved the weights from :math:`w_{bak(m)}` to w. A Taylor expansion with :math:`\lambda g g` in
    place of the Hessian gives the gradient that it would have computed now:

    .. math::

        w \leftarrow w - \eta\,(g + \lambda_t\, g \odot g \odot (w - w_{bak(m)})); \quad
        w_{bak(m)} \leftarrow w

    :math:`\lambda_t = \lambda`, or, if `adaptive`,

    .. math::

        s_m \leftarrow d\, s_m + (1 - d)\, g \odot g; \quad
        \lambda_t = \lambda / \sqrt{s_m + \epsilon}

    The paper lets the worker pull right after its push, so the backup becomes the variable then.
    Where a worker pulls later, hand over what it read: ``apply_gradients(…, backup=…)``. One
    worker, or :math:`\lambda = 0`, is gradient descent. With a sparse gradient only its rows are
    touched, all state included.

    Slots, on the variable's device and in checkpoints: ``backup_0`` … ``backup_<num_workers-1>``
    (dtype of the variable), and if `adaptive` ``mean_square_0`` … or one ``mean_square`` (float32,
    for float64 variables float64). In a graph the hook records ``optimizer/compensation_ratio``,
    ``optimizer/sign_flips`` and ``optimizer/nonfinite_gradients``, per variable. NaN and infinity
    in a gradient are applied as they are.

    Args:
        learning_rate: :math:`\eta` > 0; a number, a tensor or a callable that returns one, as all
            hyperparameters. Arithmetic and hyperparameters are float32 for half, bfloat16 and
            float32 variables and float64 for float64 variables.
        variance_parameter: :math:`\lambda` >= 0. 2 is the authors' for `adaptive`; without it they
            took 0.04.
        num_workers: Number of workers, >= 1.
        adaptive: Whether :math:`\lambda_t` follows the mean square of the gradient.
        use_locking: If True, a sparse update holds the variables' locks alone. Dense ones always
            do.
        name: Name of the optimizer, the prefix of its slots' names.
        decay: :math:`d` in [0, 1), for `adaptive`.
        epsilon: :math:`\epsilon` > 0, for `adaptive`.
        shared_mean_square: One mean square for all workers instead of one each.

    Raises:
        ValueError: If a number is out of range.

    Example:
        Worker 1 computed its gradient before worker 0 moved the weight from 1 to 0:

        >>> w = tf.Variable([1.0])
        >>> optimizer = DelayCompensatedGradientDescentOptimizer(0.5, 1.0, num_workers=2)
        >>> optimizer.apply_gradients([(tf.constant([2.0]), w)], worker_index=0)
        >>> optimizer.apply_gradients([(tf.constant([1.0]), w)], worker_index=1)
        >>> w.numpy()  # 0 - 0.5 (1 + 1 · 1 · 1 · (0 - 1))
        array([0.], dtype=float32)

    References:
        Zheng et al., 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation. ICML.
        arXiv:1609.08326.
    """

    RANGES: ClassVar = {
        "learning_rate": POSITIVE,
        "variance_parameter": NON_NEGATIVE,
        "decay": SHARE,
        "epsilon": POSITIVE,
    }
    STATISTICS: ClassVar = (
        Statistic(
            0,
            "compensation_ratio",
            "1",
            "Sum of the absolute compensation over the sum of the absolute gradient.",
        ),
        Statistic(1, "sign_flips", "1", "Share of elements whose sign the compensation flipped."),
        Statistic(2, "nonfinite_gradients", "elements", "NaN and infinity in the gradient."),
    )

    def __init__(
        self,
        learning_rate: Any,
        variance_parameter: Any = 2.0,
        num_workers: int = 1,
        adaptive: bool = False,
        use_locking: bool = False,
        name: str = "DelayCompensatedGradientDescent",
        *,
        decay: Any = 0.95,
        epsilon: Any = 1e-7,
        shared_mean_square: bool = False,
    ) -> None:
        super().__init__(
            name,
            use_locking,
            num_workers,
            learning_rate=learning_rate,
            variance_parameter=variance_parameter,
            decay=decay,
            epsilon=epsilon,
        )
        self._adaptive, self._shared = adaptive, shared_mean_square

    def _mean_square(self, worker: int) -> str:
        return "mean_square" if self._shared else f"mean_square_{worker}"

    def _create_state(self, var: tf.Variable) -> None:
        if self._adaptive:
            for worker in range(1 if self._shared else self._num_workers):
                self._slot(var, self._mean_square(worker))

    def _push(
        self, var: tf.Variable, grad: tf.Tensor, indices: tuple[tf.Tensor, ...]
    ) -> tuple[Any, tf.Tensor]:
        ops = self._ops()
        state, names = (), ("learning_rate", "variance_parameter")
        if self._adaptive:
            apply, sparse = (
                ops.resource_apply_adaptive_delay_compensated_gradient_descent,
                ops.resource_sparse_apply_adaptive_delay_compensated_gradient_descent,
            )
            state = (self._handle(var, self._mean_square(self._worker)),)
            names += ("decay", "epsilon")
        else:
            apply, sparse = (
                ops.resource_apply_delay_compensated_gradient_descent,
                ops.resource_sparse_apply_delay_compensated_gradient_descent,
            )
        statistics = (sparse if indices else apply)(
            var.handle,
            self._backup(var, grad, indices),
            *state,
            *(self._scalar(name, var) for name in names),
            grad,
            *indices,
            use_locking=self._use_locking,
        )
        return statistics, statistics
