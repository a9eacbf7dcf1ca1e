"""The update rules of ``--optimizer``: TensorFlow's own, and those with kernels of this project."""

from collections.abc import Callable

import tensorflow as tf

from deepinsight.trainer.optimizers.boosted import (
    BoostedAdagradOptimizer,
    BoostedAdamOptimizer,
    BoostedGradientDescentOptimizer,
    BoostedMomentumOptimizer,
)
from deepinsight.trainer.optimizers.delay_compensated import (
    DelayCompensatedGradientDescentOptimizer,
)
from deepinsight.trainer.optimizers.lars import LARSOptimizer
from deepinsight.trainer.options import Options

v1 = tf.compat.v1


class Ftrl(v1.train.FtrlOptimizer):
    r"""TensorFlow's FTRL, begun at the variables' initial values.

    FTRL keeps a sum z instead of the weights, :math:`w = -\eta z / \sqrt a` without
    regularisation. TensorFlow begins with z = 0: the first update throws the initial weights away,
    and a tower whose weights are all about 0 never learns. Here z begins at
    :math:`-\sqrt{a_0}\, w_0 / \eta`, which is :math:`w_0`.

    References:
        McMahan et al., 2013, Ad Click Prediction: a View from the Trenches. KDD.
    """

    INITIAL_ACCUMULATOR = 0.1

    def __init__(self, learning_rate: float) -> None:
        super().__init__(learning_rate, initial_accumulator_value=self.INITIAL_ACCUMULATOR)
        self._scale = -(self.INITIAL_ACCUMULATOR**0.5) / learning_rate

    def _zeros_slot(self, var: tf.Variable, slot_name: str, op_name: str) -> tf.Variable:
        if slot_name != "linear":
            return super()._zeros_slot(var, slot_name, op_name)
        # The same tensor that the variable is initialised from, so the same random numbers.
        return self._get_or_make_slot(var, self._scale * var.initial_value, slot_name, op_name)


def create_rule(options: Options, workers: int = 1) -> v1.train.Optimizer:
    r"""Create the update rule of ``--optimizer``.

    With gradient g, learning rate :math:`\eta` and, per element, the state that is named:

    ================  ===================================================================
    sgd               :math:`w \leftarrow w - \eta g`
    momentum          :math:`v \leftarrow \mu v + g; w \leftarrow w - \eta v`
    adagrad           :math:`a \leftarrow a + g^2; w \leftarrow w - \eta g / \sqrt{a}`, a from 0.1
    adam              :math:`\beta_1 = 0.9, \beta_2 = 0.999, \epsilon = 10^{-8}`, bias corrected
    ftrl              FTRL-proximal without regularisation, from the initial weights (`Ftrl`)
    dc-asgd           `DelayCompensatedGradientDescentOptimizer`, constant
    dc-asgd-adaptive  the same, adaptive
    boosted-…         `BoostedGradientDescentOptimizer` and its relatives
    lars              `LARSOptimizer`; biases take plain momentum
    ================  ===================================================================

    Args:
        options: The run's options.
        workers: Number of workers that push.

    Returns:
        The rule as a TensorFlow optimizer.
    """
    rate = options.learning_rate
    boosting = {
        "num_workers": workers,
        "boost": options.boost,
        "staleness_scale": options.staleness_scale,
    }

    def delay_compensated(adaptive: bool) -> v1.train.Optimizer:
        return DelayCompensatedGradientDescentOptimizer(
            rate, options.variance_parameter, num_workers=workers, adaptive=adaptive
        )

    rules: dict[str, Callable[[], v1.train.Optimizer]] = {
        "sgd": lambda: v1.train.GradientDescentOptimizer(rate),
        "momentum": lambda: v1.train.MomentumOptimizer(
            rate, options.momentum, use_nesterov=options.nesterov
        ),
        "adagrad": lambda: v1.train.AdagradOptimizer(rate),
        "adam": lambda: v1.train.AdamOptimizer(rate),
        "ftrl": lambda: Ftrl(rate),
        "dc-asgd": lambda: delay_compensated(adaptive=False),
        "dc-asgd-adaptive": lambda: delay_compensated(adaptive=True),
        "boosted-sgd": lambda: BoostedGradientDescentOptimizer(rate, **boosting),
        "boosted-momentum": lambda: BoostedMomentumOptimizer(
            rate, options.momentum, use_nesterov=options.nesterov, **boosting
        ),
        "boosted-adagrad": lambda: BoostedAdagradOptimizer(rate, **boosting),
        "boosted-adam": lambda: BoostedAdamOptimizer(rate, **boosting),
        "lars": lambda: LARSOptimizer(
            rate, options.momentum, use_nesterov=options.nesterov, skip_list=["bias"]
        ),
    }
    return rules[options.optimizer]()
