"""Workers of SyncReplicas whose steps stop between the pull and the push, on a real server."""

import socket
import threading

import numpy as np
import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.optimizers.sync_replicas.optimizer import SyncReplicasOptimizer

v1 = tf.compat.v1
TIMEOUT_S = 60
ROWS, WIDTH = 4, 2
RATE, MOMENTUM = 0.5, 0.9
SERVERS = []  # TensorFlow cannot end a server, so none may be collected


def local_server():
    """A server of its own; all sessions on it share variables, queues and accumulators."""
    made = v1.train.Server.create_local_server()
    SERVERS.append(made)
    return made


def cluster(ps, workers):
    """The servers of the workers of a cluster that lives in this process."""
    sockets = [socket.socket() for _ in range(ps + workers)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    spec = tf.train.ClusterSpec({"ps": addresses[:ps], "worker": addresses[ps:]})
    for job, count in (("ps", ps), ("worker", workers)):
        SERVERS.extend(v1.train.Server(spec, job, k) for k in range(count))
    return SERVERS[-workers:]


class SyncWorker:
    """A worker with a dense variable ``[3]`` and a table ``[ROWS, WIDTH]``.

    `pull` begins a step and `push` lets it go on; the gradients are what `push` says.
    """

    def __init__(
        self, server, index, workers, aggregate, *, timeout_s=60.0, checkpoint_dir=None,
        make_rule=lambda: v1.train.MomentumOptimizer(RATE, MOMENTUM), leaves=True,
    ):  # fmt: skip
        self._graph = tf.Graph()
        self.stop = threading.Event()
        with self._graph.as_default():
            self.step = v1.train.get_or_create_global_step()
            self.dense, self.table = (
                v1.get_variable(name, shape, initializer=v1.zeros_initializer(), use_resource=True)
                for name, shape in (("dense", [3]), ("table", [ROWS, WIDTH]))
            )
            self.sync = SyncReplicasOptimizer(
                make_rule(), aggregate, workers, worker_index=index,
                patience=Patience(timeout_s, self.stop, 0.01),
            )  # fmt: skip
            pulled, self._go, self._wait = self._gate(index)
            self._feeds = (
                v1.placeholder(tf.float32, [3]),
                v1.placeholder(tf.float32, [None, WIDTH]),
                v1.placeholder(tf.int64, [None]),
            )
            with tf.control_dependencies([self._open]):
                dense, rows = tf.identity(self._feeds[0]), tf.identity(self._feeds[1])
            pairs = [
                (dense, self.dense),
                (tf.IndexedSlices(rows, self._feeds[2], [ROWS, WIDTH]), self.table),
            ]
            op = self.sync.apply_gradients(pairs, self.step, local_step=pulled)
            decided = self.sync.decided
            self._fetches = {
                "op": op, "for": pulled, "reached": decided.reached,
                "dropped": decided.dropped, "accepted": decided.accepted, "live": decided.live,
            }  # fmt: skip
            self.is_chief = index == 0
            self._saver = v1.train.Saver()
            self.session = v1.train.MonitoredTrainingSession(
                server.target, self.is_chief, checkpoint_dir,
                hooks=[self.sync.make_session_run_hook(self.is_chief, leaves=leaves)],
                save_checkpoint_secs=None, save_summaries_steps=None, log_step_count_steps=None,
            )  # fmt: skip
        self.raw = self.session.run_step_fn(lambda step_context: step_context.session)

    def _gate(self, index):
        # The gradients of a step come through a queue, as they are known only after the pull.
        queues = [
            tf.queue.FIFOQueue(100, [tf.int64], shapes=[()], shared_name=f"{name}{index}")
            for name in ("pulled", "gate")
        ]
        pulled = self.step.read_value()
        with tf.control_dependencies([pulled]):
            value = self.dense.read_value()
        with tf.control_dependencies([value]):
            tell = queues[0].enqueue(tf.constant(1, tf.int64))
        with tf.control_dependencies([tell]):
            self._open = queues[1].dequeue()
        return pulled, queues[1].enqueue(tf.constant(1, tf.int64)), queues[0].dequeue()

    def pull(self, dense=(1, 1, 1), rows=((1, 1),), indices=(0,)):
        """Begin a step; returns when the weights have been read."""
        self.gradients = (np.float32(dense), np.float32(rows), np.int64(indices))
        feed = dict(zip(self._feeds, self.gradients, strict=True))
        self._result = {}

        def step():
            try:
                self._result.update(self.raw.run(self._fetches, feed))
            except (tf.errors.OpError, RuntimeError) as error:
                self._result["error"] = error

        self._thread = threading.Thread(target=step, daemon=True)
        self._thread.start()
        self.raw.run(self._wait)

    def push(self):
        """Let the step go on."""
        self.raw.run(self._go)

    @property
    def waits(self):
        """Whether the step has not ended."""
        return self._thread.is_alive()

    def end(self):
        """Wait for the end of the step; what it says."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the step did not end"
        if "error" in self._result:
            raise self._result["error"]
        return {k: int(v) for k, v in self._result.items() if v is not None}

    def train(self, **gradients):
        """A whole step."""
        self.pull(**gradients)
        self.push()
        return self.end()

    def leave(self):
        """Take no part any more."""
        self.raw.run(self.sync.leave_op)

    def save(self, directory):
        """Write a checkpoint; the names of what is in it."""
        with self._graph.as_default():
            path = self._saver.save(self.raw, f"{directory}/model.ckpt", write_meta_graph=False)
        return {name for name, _ in tf.train.list_variables(path)}

    def crash(self):
        """End without a word."""
        self.stop.set()
        self.raw.close()
        self.session = None

    def close(self):
        """Close the session, unless it is closed."""
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def values(self):
        """The dense variable, the table, the global step."""
        return self.raw.run([self.dense, self.table, self.step])


class Oracle:
    """The mean of a round's gradients, then momentum, in NumPy."""

    def __init__(self, dense=None, table=None, step=0):
        self.dense = np.zeros(3) if dense is None else dense
        self.table = np.zeros((ROWS, WIDTH)) if table is None else table
        self.moments = [np.zeros(3), np.zeros((ROWS, WIDTH))]
        self.step = step

    def apply(self, gradients):
        """One round; a row of the table has the mean over the workers that have the row."""
        dense = np.mean([g for g, _, _ in gradients], axis=0)
        self.moments[0] = MOMENTUM * self.moments[0] + dense
        self.dense = self.dense - RATE * self.moments[0]
        total, seen = np.zeros((ROWS, WIDTH)), np.zeros(ROWS)
        for _, rows, indices in gradients:
            np.add.at(total, indices, rows)
            seen[np.unique(indices)] += 1
        for row in np.flatnonzero(seen):
            self.moments[1][row] = MOMENTUM * self.moments[1][row] + total[row] / seen[row]
            self.table[row] = self.table[row] - RATE * self.moments[1][row]
        self.step += 1

    def check(self, worker):
        """Compare; float32 sums of a few numbers differ by rounding alone."""
        dense, table, step = worker.values()
        np.testing.assert_allclose(dense, self.dense, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(table, self.table, rtol=1e-5, atol=1e-6)
        assert step == self.step
