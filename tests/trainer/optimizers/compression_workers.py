"""Workers on real servers that compress their gradients, and the same by the rules."""

import socket
import threading
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from deepinsight.trainer import rules
from deepinsight.trainer.optimizers.compression.optimizer import push_compressed
from deepinsight.trainer.optimizers.versions import UpdateCounts

v1 = tf.compat.v1
TIMEOUT_S = 60
SHAPES = {"kernel": (24, 20), "second": (16, 15), "third": (300,), "bias": (20,), "table": (12, 3)}
DENSE = [name for name in SHAPES if name != "table"]
DENSE_BELOW = 100
LOOKED_UP = 5
SERVERS = []  # TensorFlow cannot end a server, so none may be collected


def start_cluster():
    """Two parameter servers and two workers in this process."""
    sockets = [socket.socket() for _ in range(4)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    spec = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
    places = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    made = [v1.train.Server(spec, job_name=job, task_index=index) for job, index in places]
    SERVERS.extend(made)
    return SimpleNamespace(spec=spec, targets=[made[2].target, made[3].target])


def first_values(dtype=np.float32):
    """The weights that all begin with."""
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


class Scripted:
    """A worker whose step stops between the pull and the push, until the script says go on.

    Its gradient is the pulled value minus a target, in the script's hand.
    """

    def __init__(self, cluster, container, index, rule, **options):
        self.graph = tf.Graph()
        worker = f"/job:worker/task:{index}"
        setter = v1.train.replica_device_setter(cluster=cluster.spec, worker_device=worker)
        with self.graph.as_default(), self.graph.container(container), v1.device(setter):
            step = v1.train.get_or_create_global_step()
            self.weights = {
                name: v1.get_variable(name, initializer=value, use_resource=True)
                for name, value in first_values().items()
            }
            counts = UpdateCounts(self.weights, step)
            self._targets = {
                name: v1.placeholder(tf.float32, shape) for name, shape in SHAPES.items()
            }
            self._ids = v1.placeholder(tf.int32, [LOOKED_UP])
            versions = counts.read()
            with tf.control_dependencies(versions.tensors()):
                values = {name: self.weights[name].read_value() for name in DENSE}
                with tf.device(self.weights["table"].device):
                    rows = tf.gather(self.weights["table"], self._ids)
            pulled, gate = (
                tf.queue.FIFOQueue(9, [tf.int64], shapes=[()], shared_name=f"{name}{index}")
                for name in ("pulled", "gate")
            )
            one = tf.constant(1, tf.int64)
            with tf.control_dependencies([*values.values(), rows]):
                tell = pulled.enqueue(one)
            with tf.control_dependencies([tell]):
                go = gate.dequeue()
            with tf.control_dependencies([go]):
                gradients = [
                    (values[name] - self._targets[name], self.weights[name]) for name in DENSE
                ]
                gradients.append(
                    (self._table_gradient(rows, worker, options), self.weights["table"])
                )
                rate = rule(step.read_value()) if callable(rule) else rule
            self.push = push_compressed(
                rate, gradients, counts, versions,
                workers=2, dense_below=DENSE_BELOW, **options,
            )  # fmt: skip
            self._wait, self._go = pulled.dequeue(), gate.enqueue(one)
            self.fetches = {
                "op": self.push.op,
                "step": self.push.step,
                "staleness": self.push.staleness.overall,
                "reached": self.push.reached,
            }
            self.session = v1.Session(cluster.targets[index])
            self.session.run(v1.local_variables_initializer())
            if not index:
                self.session.run(v1.global_variables_initializer())
            self.graph.finalize()

    def _table_gradient(self, rows, worker, options):
        """On the table's server, as in the trainer; where it is compressed, on the worker."""
        with tf.device(worker if options.get("compress_sparse") else self.weights["table"].device):
            wanted = tf.gather(self._targets["table"], self._ids)
            return tf.IndexedSlices(rows - wanted, self._ids)

    def pull(self, targets, ids):
        """Begin a step; returns when the weights have been read."""
        feeds = {self._targets[name]: target for name, target in targets.items()}
        self.result = {}

        def step():
            self.result.update(self.session.run(self.fetches, feeds | {self._ids: ids}))

        self._thread = threading.Thread(target=step, daemon=True)
        self._thread.start()
        self.session.run(self._wait)

    def apply(self):
        """Let the step go on, and wait for its end."""
        self.session.run(self._go)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the step did not end"
        return self.result

    def values(self):
        """The weights now."""
        return self.session.run(self.weights)

    def state(self):
        """Velocity and residual by variable name."""
        found = {}
        for variable, value in zip(self.push.own, self.session.run(self.push.own), strict=True):
            found[variable.op.name] = value
        return found


class Rules:
    """The same workers by the rules of `deepinsight.trainer.rules`, in NumPy."""

    def __init__(self, *, momentum, sparsity, rate, masking=True, compress_sparse=False):
        self.weights = first_values()
        self._momentum, self._sparsity, self._rate = momentum, sparsity, rate
        self._masking, self._compress_sparse = masking, compress_sparse
        self.states = [
            {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in self.weights.items()}
            for _ in range(2)
        ]
        self._steps = [0, 0]
        self._pulled = [None, None]
        self._updates = 0

    def pull(self, worker, targets, ids):
        """Compute the gradients at the weights as they are now."""
        gradients = {name: self.weights[name] - targets[name] for name in DENSE}
        gradients["table"] = (self.weights["table"] - targets["table"])[ids]
        self._pulled[worker] = gradients, ids

    def apply(self, worker, scale=None):
        """Send and apply what was computed at the pull."""
        gradients, ids = self._pulled[worker]
        rate = np.float32(self._rate(self._updates) if callable(self._rate) else self._rate)
        sparsity = self._sparsity
        if callable(sparsity):
            sparsity = sparsity(self._steps[worker])
        for name, gradient in gradients.items():
            if name == "table" and not self._compress_sparse:
                np.subtract.at(self.weights[name], ids, rate * gradient)
                continue
            clipped = 1.0 if scale is None else scale(gradients, ids)
            indices, values = self._send(
                worker, name, gradient * np.float32(clipped), ids, sparsity
            )
            (self.weights[name],) = rules.scatter_gradient_descent_step(
                self.weights[name], indices, values, learning_rate=rate
            )
        self._steps[worker] += 1
        self._updates += 1

    def _send(self, worker, name, gradient, ids, sparsity):
        velocity, residual = self.states[worker][name]
        accumulate, rows = rules.accumulate_for_compression, ()
        if name == "table":
            accumulate, rows = rules.sparse_accumulate_for_compression, (ids,)
        velocity, residual = accumulate(
            velocity, residual, gradient, *rows, momentum=self._momentum
        )
        whole = velocity.size < DENSE_BELOW
        share = 0.0 if whole else float(np.float32(sparsity))
        indices, values, cleared, residual = rules.select_top_k(velocity, residual, sparsity=share)
        kept = velocity if whole or not self._masking else cleared
        self.states[worker][name] = kept, residual
        return indices, values
