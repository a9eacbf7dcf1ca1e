"""Workers that average their models, each with a graph and a session, on real servers."""

import socket
import threading
from itertools import count

import numpy as np
import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.optimizers.averaging.model_average import (
    ModelAverageCustomGetter,
    ModelAverageOptimizer,
)

v1 = tf.compat.v1
TIMEOUT_S = 60
SERVERS = []  # TensorFlow cannot end a server, so none may be collected
NAMES = count()
BIAS, TABLE = (3,), (4, 2)


def start_cluster(ps, workers):
    """Servers in this process; returns the cluster and the workers' targets."""
    sockets = [socket.socket() for _ in range(ps + workers)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    spec = tf.train.ClusterSpec({"ps": addresses[:ps], "worker": addresses[ps:]})
    made = [
        v1.train.Server(spec, job_name=job, task_index=index)
        for job, number in (("ps", ps), ("worker", workers))
        for index in range(number)
    ]
    SERVERS.extend(made)
    return spec, [server.target for server in made[ps:]]


def together(*calls):
    """Make the calls at the same time, each in a thread; returns what they returned."""
    results, errors = [None] * len(calls), []

    def make(place, call):
        try:
            results[place] = call()
        except BaseException as error:  # handed on below
            errors.append(error)

    threads = [
        threading.Thread(target=make, args=(place, call), daemon=True)
        for place, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "a worker did not come back in time"
    if errors:
        raise errors[0]
    return results


class Place:
    """What the workers of one test share: servers, and resources of its own on them."""

    def __init__(self, cluster, workers=2):
        self.spec, self.targets = cluster
        self.workers, self.container = workers, f"test{next(NAMES)}"

    def graph(self):
        """A graph whose resources no other test sees."""
        return tf.Graph(), self.container


class Averaging:
    """Worker `index`: a bias with a dense gradient, a table with a sparse one, both fed.

    The session is opened by `open`, so that a test can decide who comes when.
    """

    def __init__(self, place, index, base, *, interval=2, timeout_s=30.0, dtype=tf.float32, **more):
        self.place, self.index, self.chief = place, index, index == 0
        self.graph, container = place.graph()
        device = f"/job:worker/task:{index}"
        self.getter = ModelAverageCustomGetter(device)
        self.patience = Patience(timeout_s, threading.Event())
        with self.graph.as_default(), self.graph.container(container):
            setter = v1.train.replica_device_setter(cluster=place.spec, worker_device=device)
            with v1.device(setter):
                self.step = v1.train.get_or_create_global_step()
                with v1.variable_scope("", custom_getter=self.getter):
                    # Each worker would begin elsewhere, if it did not begin at the global value.
                    begin = np.arange(3) + 10.0 * index
                    bias = v1.get_variable("bias", initializer=tf.constant(begin, dtype))
                    table = v1.get_variable("net/table", TABLE, dtype, v1.zeros_initializer())
                self.variables = [bias, table]
                self.feeds = [
                    v1.placeholder(dtype, BIAS),
                    v1.placeholder(dtype, [None, TABLE[1]]),
                    v1.placeholder(tf.int32, [None]),
                ]
                dense, rows, indices = self.feeds
                self.optimizer = ModelAverageOptimizer(
                    base(), place.workers, self.chief, self.getter, interval,
                    patience=self.patience, **more,
                )  # fmt: skip
                self.train = self.optimizer.apply_gradients(
                    [(dense, bias), (tf.IndexedSlices(rows, indices), table)], self.step
                )
        self.copies = [self.getter.global_variables[v] for v in self.variables]
        self.session = None

    def open(self, hooks=(), **how):
        """Open the worker's session."""
        with self.graph.as_default(), self.graph.container(self.place.container):
            self.session = v1.train.MonitoredTrainingSession(
                self.place.targets[self.index],
                is_chief=self.chief,
                hooks=[self.optimizer.make_session_run_hook(), *hooks],
                **how,
            )
        return self

    def push(self, gradients):
        """Make a training step."""
        with self.graph.as_default():  # a saver's hook saves in this thread
            self.session.run(self.train, dict(zip(self.feeds, gradients, strict=True)))

    def read(self, *what):
        """Read variables without the hooks."""
        return self.session.run_step_fn(lambda step_context: step_context.session.run(list(what)))

    def raw(self):
        """The session without hooks."""
        return self.session.run_step_fn(lambda step_context: step_context.session)

    def close(self):
        """End the session as a script does."""
        with self.graph.as_default():
            self.session.close()


def random_gradients(generator, dtype=np.float32):
    """A dense gradient, and rows of a sparse one with an index that is named twice."""
    indices = np.array([0, 2, 2], np.int32)
    return (
        generator.normal(size=BIAS).astype(dtype),
        generator.normal(size=(3, TABLE[1])).astype(dtype),
        indices,
    )
