"""A script as it was written for ``tf.contrib.opt``, with another import; one process of it.

    python contrib_script.py JOB INDEX KIND ADDRESS...

The server process does nothing but join: it knows no op beside TensorFlow's own.
"""

import sys

import tensorflow.compat.v1 as tf

from deepinsight.trainer import optimizers as opt  # was: from tensorflow.contrib import opt

STEPS = 60

tf.disable_v2_behavior()
job, index, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
cluster = tf.train.ClusterSpec({"ps": sys.argv[4:5], "worker": sys.argv[5:]})
server = tf.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()

is_chief, worker_device = index == 0, f"/job:worker/task:{index}"
tf.set_random_seed(index)
getter = None
if kind == "model":
    getter = opt.ModelAverageCustomGetter(worker_device=worker_device)
elif kind == "elastic":
    getter = opt.ElasticAverageCustomGetter(worker_device=worker_device)
setter = tf.train.replica_device_setter(worker_device=worker_device, cluster=cluster)
with tf.device(setter), tf.variable_scope("", custom_getter=getter):
    global_step = tf.train.get_or_create_global_step()
    inputs = tf.random.normal([32, 4])
    weights = tf.get_variable("weights", [4, 1], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean((tf.matmul(inputs, weights) - tf.reduce_sum(inputs, 1, True)) ** 2)
    descent, hooks = tf.train.GradientDescentOptimizer(0.05), []
    if kind == "model":
        optimizer = opt.ModelAverageOptimizer(
            opt=descent, num_worker=2, is_chief=is_chief, ma_custom_getter=getter, interval_steps=10
        )
        train_op = optimizer.minimize(loss, global_step=global_step)
        hooks.append(optimizer.make_session_run_hook())
    elif kind == "elastic":
        optimizer = opt.ElasticAverageOptimizer(
            opt=descent, num_worker=2, ea_custom_getter=getter, communication_period=5
        )
        train_op = optimizer.minimize(loss, global_step=global_step)
        hooks.append(optimizer.make_session_run_hook(is_chief, index))
    else:
        optimizer = opt.DropStaleGradientOptimizer(descent, staleness=5)
        train_op = optimizer.minimize(loss, global_step=global_step)
config = tf.ConfigProto(device_filters=["/job:ps", worker_device])
with tf.train.MonitoredTrainingSession(
    server.target, is_chief=is_chief, hooks=hooks, config=config
) as session:
    losses = [session.run([loss, train_op])[0] for _ in range(STEPS)]
    print("loss", losses[0], losses[-1], "global step", session.run(global_step))
