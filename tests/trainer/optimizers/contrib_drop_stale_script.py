"""A training script as it was written for tf.contrib.opt; only its imports are changed.

Run with a job name (ps, worker), a task index, a folder and the cluster as JSON.
"""

import json
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

from deepinsight.trainer.optimizers.staleness.drop_stale import DropStaleGradientOptimizer

STEPS = 120
STALENESS = 2


def make_batch(random, pause):
    """Points of a plane; the slow worker takes its time, and the chief goes on meanwhile."""
    time.sleep(pause)
    x = random.normal(size=(32, 2)).astype(np.float32)
    return x, x @ np.float32([[2.0], [-3.0]]) + np.float32(1.0)


def model(index):
    random = np.random.RandomState(index)
    pause = 0.1 if index == 1 else 0.01
    x, y = tf.py_func(lambda: make_batch(random, pause), [], [tf.float32, tf.float32])
    x.set_shape([32, 2])
    y.set_shape([32, 1])
    kernel = tf.get_variable("kernel", [2, 1], initializer=tf.zeros_initializer())
    bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
    return tf.reduce_mean(tf.square(tf.matmul(x, kernel) + bias - y)), kernel


def work(server, cluster, index, folder, wait=lambda: None):
    worker = f"/job:worker/task:{index}"
    with tf.Graph().as_default():
        with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=worker)):
            global_step = tf.train.get_or_create_global_step()
            loss, kernel = model(index)
            base = tf.train.MomentumOptimizer(0.05, 0.5)
            optimizer = DropStaleGradientOptimizer(base, STALENESS)
            gradients = optimizer.compute_gradients(loss)
            train_op = optimizer.apply_gradients(gradients, global_step)
        losses, dropped = [], 0.0
        with tf.train.MonitoredTrainingSession(
            master=server.target,
            is_chief=index == 0,
            hooks=[tf.train.StopAtStepHook(last_step=STEPS)],
            checkpoint_dir=folder if index == 0 else None,
            config=tf.ConfigProto(device_filters=["/job:ps", worker]),
        ) as session:
            wait()
            while not session.should_stop():
                dropped, loss_now = session.run([train_op, loss])
                losses.append(float(loss_now))
    slot = optimizer.get_slot(kernel, "momentum").name
    return {"losses": losses, "dropped": float(dropped), "slot": slot}


def main(job, index, folder, cluster, wait=lambda: None):
    cluster = tf.train.ClusterSpec(json.loads(cluster))
    server = tf.train.Server(cluster, job_name=job, task_index=int(index))
    if job == "ps":
        server.join()
    return work(server, cluster, int(index), folder, wait)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
