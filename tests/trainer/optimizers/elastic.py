"""Workers of elastic averaging on real servers, one step at a time."""

import socket
import threading

import numpy as np
import tensorflow as tf

from deepinsight.trainer.optimizers.averaging.elastic_average import (
    ElasticAverageCustomGetter,
    ElasticAverageOptimizer,
)

v1 = tf.compat.v1
SERVERS = []  # TensorFlow cannot end a server, so none may be collected
START = {
    "w": np.float32([[1, 2], [3, 4], [5, 6]]),
    "table": np.float32(np.arange(12)).reshape(6, 2),
}


class Cluster:
    """Servers of this process: workers, and one or more parameter servers."""

    def __init__(self, workers, ps=1):
        sockets = [socket.socket() for _ in range(workers + ps)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()
        self.jobs = {"worker": addresses[:workers], "ps": addresses[workers:]}
        self.workers, self.ps = workers, ps
        made = [
            v1.train.Server(self.jobs, job_name=job, task_index=task)
            for job, members in self.jobs.items()
            for task in range(len(members))
        ]
        SERVERS.extend(made)
        self.targets = [server.target for server in made[:workers]]


class Worker:
    """A worker with a dense variable and a table, whose gradients the script gives."""

    def __init__(self, cluster, index, base=None, *, start=None, session=None, **options):
        self.index, self.graph = index, tf.Graph()
        device = f"/job:worker/task:{index}"
        with self.graph.as_default():
            self.getter = ElasticAverageCustomGetter(worker_device=device)
            setter = v1.train.replica_device_setter(
                worker_device=device, ps_device="/job:ps", ps_tasks=cluster.ps
            )
            with v1.device(setter), v1.variable_scope("", custom_getter=self.getter):
                self.step = v1.train.get_or_create_global_step()
                self.locals = {
                    name: v1.get_variable(name, initializer=tf.constant(value))
                    for name, value in (start or START).items()
                }
                self.optimizer = ElasticAverageOptimizer(
                    base() if base else v1.train.GradientDescentOptimizer(0.5),
                    cluster.workers,
                    self.getter,
                    **options,
                )
                self.centers = {
                    name: self.optimizer.global_variables[local]
                    for name, local in self.locals.items()
                }
                self._feeds = [
                    v1.placeholder(tf.float32, [3, 2]),
                    v1.placeholder(tf.float32, [None, 2]),
                    v1.placeholder(tf.int32, [None]),
                ]
                dense, rows, indices = self._feeds
                pairs = [
                    (dense, self.locals["w"]),
                    (tf.IndexedSlices(rows, indices), self.locals["table"]),
                ]
                self.train_op = self.optimizer.apply_gradients(pairs, self.step)
            self.hook = self.optimizer.make_session_run_hook(index == 0, index)
            self.session = (session or v1.train.MonitoredTrainingSession)(
                master=cluster.targets[index], is_chief=index == 0, hooks=[self.hook]
            )

    def train(self, dense, rows, indices):
        feed = dict(zip(self._feeds, (dense, rows, indices), strict=True))
        with self.graph.as_default():  # savers ask for it
            self.session.run(self.train_op, feed)

    def read(self, what, feed=None):
        """Values without the hooks."""
        return self.session.run_step_fn(lambda step_context: step_context.session.run(what, feed))

    def set_locals(self, values):
        """Set the worker's variables."""
        for name, value in values.items():
            initializer = self.locals[name].initializer
            self.read(initializer, {initializer.inputs[1]: value})

    def close(self):
        with self.graph.as_default():
            self.session.close()


def random_gradients(generator):
    """A dense gradient, rows of a sparse one, and their indices, some of them twice."""
    return (
        generator.normal(size=(3, 2)).astype(np.float32),
        generator.normal(size=(4, 2)).astype(np.float32),
        generator.integers(0, 5, 4).astype(np.int32),  # the last row never
    )


def descend(state, gradients, rate):
    """A step of gradient descent in NumPy, on ``{"w": …, "table": …}``."""
    dense, rows, indices = gradients
    table = state["table"].copy()
    np.subtract.at(table, indices, np.float32(rate) * rows)
    return {"w": state["w"] - np.float32(rate) * dense, "table": table}


def together(*steps, timeout_s=60):
    """Run steps at once, each in a thread; raise what one of them raises."""
    errors = []

    def run(step):
        try:
            step()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a step did not end"
