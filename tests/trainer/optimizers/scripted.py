"""Workers on real in-process servers whose steps stop where the script wants."""

import itertools
import socket
import threading

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
TIMEOUT_S = 60
DENSE, TABLE, BIAS = (2, 2), (4, 2), (3,)
ROWS = [1, 3, 1]  # one of them twice
NUMBERS = itertools.count()
_SERVERS = []  # TensorFlow cannot end a server, so none may be collected


def free_addresses(count):
    """Addresses on which nobody listens."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def start_cluster(ps):
    """Parameter servers and one worker server in this process: cluster, worker's target."""
    addresses = free_addresses(ps + 1)
    spec = tf.train.ClusterSpec({"ps": addresses[:ps], "worker": addresses[ps:]})
    tasks = [("ps", k) for k in range(ps)] + [("worker", 0)]
    made = [v1.train.Server(spec, job_name=job, task_index=index) for job, index in tasks]
    _SERVERS.extend(made)
    return spec, made[-1].target


def fresh(cluster):
    """The same servers, with variables of their own."""
    return (*cluster[:2], f"container-{next(NUMBERS)}")


def initial_values():
    """Dense, table, bias."""
    generator = np.random.default_rng(7)
    return [generator.normal(size=s).astype(np.float32) for s in (DENSE, TABLE, BIAS)]


def make_variables():
    """The variables, spread over the servers in turn, and the global step on the first."""
    step = v1.train.get_or_create_global_step()
    names = ("dense", "table", "bias")
    variables = [
        v1.get_variable(name, initializer=value, use_resource=True)
        for name, value in zip(names, initial_values(), strict=True)
    ]
    return step, variables


def loss_of(values, rows, worker):
    """Half the squared distance of what was read to a target of the worker's own."""
    dense, bias = values
    total = sum(tf.reduce_sum((x - worker - 1.0) ** 2) for x in (dense, bias, rows))
    return 0.5 * total


def gradients_of(values, worker):
    """In NumPy: the gradients of `loss_of` at (dense, table, bias)."""
    dense, table, bias = values
    return dense - worker - 1, table[ROWS] - worker - 1, bias - worker - 1


class Gate:
    """Says when a point in the graph is reached, and holds what lies behind it."""

    def __init__(self, name):
        with tf.device("/job:ps/task:0"):
            self._reached, self._gate = (
                tf.queue.FIFOQueue(100, [tf.int64], shapes=[()], shared_name=f"{kind}-{name}")
                for kind in ("reached", "gate")
            )
        self.wait, self.open = self._reached.dequeue(), self._gate.enqueue(np.int64(1))

    def hold(self, tensors):
        """The same tensors, behind the gate."""
        flat = [t.values if isinstance(t, tf.IndexedSlices) else t for t in tensors]
        with tf.control_dependencies(flat):
            tell = self._reached.enqueue(np.int64(1))
        with tf.control_dependencies([tell]):
            go = self._gate.dequeue()
        held = []
        for tensor in tensors:
            with tf.control_dependencies([go]):
                if isinstance(tensor, tf.IndexedSlices):
                    values, indices = tf.identity(tensor.values), tf.identity(tensor.indices)
                    held.append(tf.IndexedSlices(values, indices, tensor.dense_shape))
                else:
                    held.append(tf.identity(tensor))
        return held


class Scripted:
    """A worker in a graph of its own; `build(worker, gate)` returns what a step fetches.

    The one of index 0 initialises the variables. `cluster` comes from `fresh`.
    """

    def __init__(self, cluster, index, build):
        spec, target, container = cluster
        self.index, self.graph = index, tf.Graph()
        with self.graph.as_default(), self.graph.container(container):
            setter = v1.train.replica_device_setter(
                cluster=spec, worker_device="/job:worker/task:0"
            )
            with v1.device(setter):
                gate = Gate(next(NUMBERS))
                self.fetches = build(self, gate)
            self.session = v1.Session(target)
            if index == 0:
                self.session.run(v1.global_variables_initializer())
        self._gate = gate

    def run(self, fetches):
        with self.graph.as_default():
            return self.session.run(fetches)

    def pull(self):
        """Begin a step; returns when the gradients have been computed."""
        self._result = {}

        def step():
            self._result.update(self.session.run(self.fetches))

        self._thread = threading.Thread(target=step, daemon=True)
        self._thread.start()
        self.session.run(self._gate.wait)

    def push(self):
        """Let the step go on, and wait for its end; what was fetched."""
        self.session.run(self._gate.open)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the step did not end"
        return self._result
