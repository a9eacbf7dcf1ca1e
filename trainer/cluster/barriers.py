"""How the processes of a cluster begin and end together.

Every worker waits until all are ready, so that all take part however short the run is: before its
first step, but the chief of an asynchronous run after its first two. They take seconds, for its
snapshots are prepared in them, and the others would train on meanwhile.

Nobody leaves while another still needs it. Workers do not talk to each other (their sessions see
the parameter servers and themselves only), so a worker may leave as soon as it is done; it says so
in a queue on the first parameter server. The chief waits for all that are not lost, evaluates and
saves, and then tells every server to stop: the parameter servers, and in an in-graph run the
workers that serve the one client. A TensorFlow server that exits under a session would hang that
session; that is why the servers wait a moment more.
"""

import logging
import time
from collections.abc import Callable
from threading import Event

import tensorflow as tf

from deepinsight.trainer.cluster.topology import Topology
from deepinsight.trainer.cluster.watch import START_TIMEOUT_S, Watch
from deepinsight.trainer.errors import ClusterError

v1 = tf.compat.v1
POLL_S = 0.05
SERVER_POLL_S = 0.2
POLL_CHIEF_S = 1.0
GRACE_S = 3.0  # between the word to stop and the end of a parameter server
CAPACITY = 1 << 16

log = logging.getLogger(__name__)


def server_config(*, device_filters: tuple[str, ...] = ()) -> v1.ConfigProto:
    """Settings for a process that shares a small machine with others.

    One thread computes an op, two ops may run at a time: with a pool per process, more threads
    only take each other's place. Graphs run as they were built: TensorFlow's graph optimizers take
    seconds for every new set of fetches, a snapshot's among them, and make no step faster.
    """
    config = v1.ConfigProto(
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=2,
        allow_soft_placement=True,
        device_filters=list(device_filters),
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def _queue(name: str, task: str = "ps-0") -> tf.queue.QueueBase:
    with tf.device("/job:{}/task:{}".format(*task.split("-"))):
        return tf.queue.FIFOQueue(CAPACITY, [tf.int64], shapes=[()], shared_name=f"barriers/{name}")


class Barriers:
    """A worker's side, built into its graph.

    Args:
        topology: The worker's place.
        serving: Whether the other workers serve this one, in an in-graph run.
    """

    def __init__(self, topology: Topology, *, serving: bool = False) -> None:
        self._workers = 1 if serving else len(topology.workers)
        ready, done = _queue("ready"), _queue("done")
        index = tf.constant(topology.index, tf.int64)
        self.ready_op, self._ready_count = ready.enqueue(index), ready.size()
        self.done_op = done.enqueue(index)
        self._done_count = done.size()
        self._taking = v1.placeholder(tf.int32, [], "done_workers")
        self._taken = done.dequeue_many(self._taking)
        servers = [f"ps-{k}" for k in range(len(topology.ps))]
        if serving:
            servers += [f"worker-{k}" for k in range(1, len(topology.workers))]
        self._stop_op = tf.group(*(_queue(f"stop-{s}", s).enqueue(index) for s in servers))

    def wait_for_start(self, session: v1.Session, stop: Event, timeout_s: float) -> bool:
        """Wait until all workers are ready; one that was started again finds that they are.

        Args:
            session: A session without hooks.
            stop: Ends the wait.
            timeout_s: After so long, begin without those that are not ready.

        Returns:
            Whether all were ready.
        """
        session.run(self.ready_op)
        end = time.monotonic() + timeout_s
        while (ready := session.run(self._ready_count)) < self._workers:
            if stop.is_set():
                return False
            if time.monotonic() > end:
                log.warning(
                    "%d of %d workers are ready after %.0f s: beginning without the others.",
                    ready, self._workers, timeout_s,
                )  # fmt: skip
                return False
            time.sleep(POLL_S)
        return True

    def take_done(self, session: v1.Session) -> set[int]:
        """The workers that have said since the last call that they are done; for the chief.

        Args:
            session: A session without hooks.
        """
        count = session.run(self._done_count)
        if not count:
            return set()
        return set(session.run(self._taken, {self._taking: count}).tolist())

    def stop_servers(self, session: v1.Session) -> None:
        """The chief's last word, after which it closes its session."""
        session.run(self._stop_op)


def serve(topology: Topology) -> None:
    """Be a server until the chief says that training is over.

    Raises:
        ClusterError: If the chief is gone without having said so, or never came.
    """
    server = v1.train.Server(
        topology.cluster(),
        job_name=topology.job,
        task_index=topology.index,
        config=server_config(),
    )
    own = f"/job:{topology.job}/task:{topology.index}"
    with tf.Graph().as_default():
        count = _queue(f"stop-{topology.process}", topology.process).size()
        config = server_config(device_filters=(own,))
        with v1.Session(server.target, config=config) as session:
            failure = _wait_for_stop(lambda: bool(session.run(count)), topology.workers[0])
    time.sleep(GRACE_S)
    if failure is not None:
        raise ClusterError(failure)


def _wait_for_stop(stopped: Callable[[], bool], chief: str) -> str | None:
    """Wait until the chief says stop; returns what is wrong if it never can."""
    watch = Watch({"the chief, worker-0": chief})
    began, looked = time.monotonic(), float("-inf")
    while not stopped():
        if time.monotonic() - looked > POLL_CHIEF_S:
            watch.look()
            looked = time.monotonic()
        if watch.lost:
            return f"{watch.describe(watch.lost)} is gone, so this server ends."
        if time.monotonic() - began > START_TIMEOUT_S and not watch.seen("the chief, worker-0"):
            return (
                f"The chief, worker-0 ({chief}), has not appeared within {START_TIMEOUT_S:.0f} s. "
                f"Check its output and the address in TF_CONFIG."
            )
        time.sleep(SERVER_POLL_S)
    return None
