"""A statistics and inverse worker in a process of its own: ``python kfac_process.py TARGET``.

It works on the variables of the server TARGET until it is killed.
"""

import sys
from pathlib import Path

import tensorflow as tf

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent))
    from kfac_cases import Network, batch  # type: ignore[import-not-found]
else:
    from .kfac_cases import Network, batch

from deepinsight.trainer.optimizers.kfac.optimizer import KFACOptimizer
from deepinsight.trainer.optimizers.kfac.workers import KFACPaceHook

v1 = tf.compat.v1
OPTIONS = {"damping": 0.5, "burn_in": 2, "inverse_every": 5, "momentum": 0.0}


def main(target):
    """Work until the end of the process."""
    network = Network()
    rule = KFACOptimizer(
        0.01, network.layers, fisher_loss=network.fisher_loss, role="statistics+inverse", **OPTIONS
    )
    with tf.control_dependencies([rule.statistics_op()]):
        op = tf.group(rule.inverse_op())
    with v1.train.SingularMonitoredSession(
        [KFACPaceHook(rule, op)], scaffold=v1.train.Scaffold(init_op=tf.no_op()), master=target
    ) as session:
        number = 0
        while not session.should_stop():
            session.run(op, dict(zip(network.feeds, batch(number), strict=True)))
            number += 1
            print(number, flush=True)


if __name__ == "__main__":
    with tf.Graph().as_default():
        main(sys.argv[1])
