"""The update rules of ``--optimizer``: TensorFlow's own."""

import tensorflow as tf

v1 = tf.compat.v1


def create_rule(name: str, learning_rate: float, momentum: float = 0.9) -> v1.train.Optimizer:
    r"""Create an update rule.

    With gradient g, learning rate :math:`\eta` and, per element, the state that is named:

    ========  =======================================================================
    sgd       :math:`w \leftarrow w - \eta g`
    momentum  :math:`v \leftarrow \mu v + g; w \leftarrow w - \eta v`
    adagrad   :math:`a \leftarrow a + g^2; w \leftarrow w - \eta g / \sqrt{a}`, a from 0.1
    adam      :math:`\beta_1 = 0.9, \beta_2 = 0.999, \epsilon = 10^{-8}`, with bias correction
    ftrl      FTRL-proximal without regularisation, learning-rate power -1/2
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
        "ftrl": v1.train.FtrlOptimizer,
    }
    return rules[name](learning_rate)
