"""The update rules of ``--optimizer``: TensorFlow's own."""

import tensorflow as tf

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


def create_rule(name: str, learning_rate: float, momentum: float = 0.9) -> v1.train.Optimizer:
    r"""Create an update rule.

    With gradient g, learning rate :math:`\eta` and, per element, the state that is named:

    ========  =======================================================================
    sgd       :math:`w \leftarrow w - \eta g`
    momentum  :math:`v \leftarrow \mu v + g; w \leftarrow w - \eta v`
    adagrad   :math:`a \leftarrow a + g^2; w \leftarrow w - \eta g / \sqrt{a}`, a from 0.1
    adam      :math:`\beta_1 = 0.9, \beta_2 = 0.999, \epsilon = 10^{-8}`, with bias correction
    ftrl      FTRL-proximal without regularisation, from the initial weights (`Ftrl`)
    ========  =======================================================================

    Args:
        name: The rule.
        learning_rate: :math:`\eta` > 0.
        momentum: :math:`\mu` in [0, 1), for ``momentum`` only.

    Returns:
        The rule as a TensorFlow optimizer.

    Raises:
        KeyError: If there is no rule of that name.
    """
    rules = {
        "sgd": v1.train.GradientDescentOptimizer,
        "momentum": lambda rate: v1.train.MomentumOptimizer(rate, momentum),
        "adagrad": v1.train.AdagradOptimizer,
        "adam": v1.train.AdamOptimizer,
        "ftrl": Ftrl,
    }
    return rules[name](learning_rate)
