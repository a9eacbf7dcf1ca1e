"""How the processes of a cluster end: nobody leaves while another still needs it.

Workers do not talk to each other (their sessions see the parameter servers and themselves only),
so a worker may leave as soon as it is done; it says so in a queue on the first parameter server.
The chief waits for all, evaluates and saves, and then tells every parameter server to stop. A
TensorFlow server that exits under a session would hang that session; that is why the servers wait
a moment more.
"""

import logging
import time

import tensorflow as tf

from deepinsight.trainer.cluster.topology import Topology

v1 = tf.compat.v1
POLL_S = 0.1
GRACE_S = 3.0  # between the word to stop and the end of a parameter server
CAPACITY = 1 << 16

log = logging.getLogger(__name__)


def server_config(*, device_filters: tuple[str, ...] = ()) -> v1.ConfigProto:
    """Settings for a process that shares a small machine with others.

    One thread computes an op, two ops may run at a time: with a pool per process, more threads
    only take each other's place.
    """
    return v1.ConfigProto(
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=2,
        allow_soft_placement=True,
        device_filters=list(device_filters),
    )


def _queue(name: str, ps: int) -> tf.queue.QueueBase:
    with tf.device(f"/job:ps/task:{ps}"):
        return tf.queue.FIFOQueue(CAPACITY, [tf.int64], shapes=[()], shared_name=f"parting/{name}")


class Parting:
    """A worker's side, built into its graph.

    Args:
        topology: The worker's place.
    """

    def __init__(self, topology: Topology) -> None:
        self._others = len(topology.workers) - 1
        done = _queue("done", 0)
        index = tf.constant(topology.index, tf.int64)
        self.done_op = done.enqueue(index)
        self._done_count = done.size()
        self._stop_op = tf.group(
            *(_queue(f"stop-{k}", k).enqueue(index) for k in range(len(topology.ps)))
        )

    def wait_for_others(
        self, session: v1.Session, global_step: tf.Variable, timeout_s: float
    ) -> bool:
        """The chief waits until all other workers are done.

        Args:
            session: A session without hooks.
            global_step: As long as it rises, others are at work.
            timeout_s: How long to wait without a sign of life.

        Returns:
            Whether all are done; False if they were waited for in vain.
        """
        seen, since = -1, time.monotonic()
        while True:
            done, step = session.run([self._done_count, global_step])
            if done >= self._others:
                return True
            if step != seen:
                seen, since = step, time.monotonic()
            if time.monotonic() - since > timeout_s:
                log.warning(
                    "%d of %d other workers did not finish, and the global step stands still for "
                    "%.0f s: going on without them.",
                    self._others - done, self._others, timeout_s,
                )  # fmt: skip
                return False
            time.sleep(POLL_S)

    def stop_servers(self, session: v1.Session) -> None:
        """The chief's last word, after which it closes its session."""
        session.run(self._stop_op)


def serve(topology: Topology) -> None:
    """Be a parameter server until the chief says that training is over."""
    server = v1.train.Server(
        topology.cluster(), job_name="ps", task_index=topology.index, config=server_config()
    )
    own = f"/job:ps/task:{topology.index}"
    with tf.Graph().as_default():
        stop = _queue(f"stop-{topology.index}", topology.index)
        count = stop.size()
        config = server_config(device_filters=(own,))
        with v1.Session(server.target, config=config) as session:
            while not session.run(count):
                time.sleep(POLL_S)
    time.sleep(GRACE_S)
