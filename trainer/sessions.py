"""The monitored session of a worker, started without TensorFlow's 30-second waits."""

from collections.abc import Sequence

import tensorflow as tf

from deepinsight.trainer.cluster.watch import START_TIMEOUT_S
from deepinsight.trainer.graph import TrainingGraph

v1 = tf.compat.v1
RECOVERY_WAIT_S = 0.2
STOP_GRACE_S = 0.1  # the chief's thread for rounds ends only when its session is closed


class _WorkerSessionCreator(v1.train.WorkerSessionCreator):
    """Looks for the chief's variables five times a second; TensorFlow's own looks every 30 s."""

    def _get_session_manager(self) -> v1.train.SessionManager:
        if self._session_manager is None:
            self._session_manager = v1.train.SessionManager(
                local_init_op=self._scaffold.local_init_op,
                ready_op=self._scaffold.ready_op,
                ready_for_local_init_op=self._scaffold.ready_for_local_init_op,
                graph=v1.get_default_graph(),
                recovery_wait_secs=RECOVERY_WAIT_S,
            )
        return self._session_manager


class _Session(v1.train.SingularMonitoredSession):
    """A monitored session that raises when a server is lost.

    `MonitoredSession` would open a new session instead, again and again, in silence. The class in
    between makes a session creator of its own, so its initializer is left out.
    """

    def __init__(
        self, creator: v1.train.SessionCreator, hooks: Sequence[v1.train.SessionRunHook]
    ) -> None:
        super(v1.train.SingularMonitoredSession, self).__init__(
            creator, hooks, should_recover=False, stop_grace_period_secs=STOP_GRACE_S
        )


def create_session(
    graph: TrainingGraph,
    *,
    target: str,
    config: v1.ConfigProto,
    is_chief: bool,
    checkpoint_dir: str | None,
    hooks: Sequence[v1.train.SessionRunHook],
) -> tuple[v1.train.SingularMonitoredSession, v1.train.Saver]:
    """Open a worker's session in the default graph, which becomes read-only.

    Args:
        graph: The worker's graph.
        target: The server's target, "" for a run of a single process.
        config: The session's settings.
        is_chief: The chief initialises the variables or restores the newest checkpoint; the others
            wait for it.
        checkpoint_dir: Where the chief looks for a checkpoint.
        hooks: Session hooks.

    Returns:
        The session and the saver of what belongs to a checkpoint.
    """
    push = graph.push
    apart = {variable.ref() for variable in (*push.variables, *push.own)}
    kept = [variable for variable in v1.global_variables() if variable.ref() not in apart]
    saver = v1.train.Saver(kept, max_to_keep=2)
    local_init = [v1.local_variables_initializer(), v1.tables_initializer()]
    local_init.append(v1.variables_initializer(push.own))
    if is_chief and push.start_op is not None:
        # What belongs to one launch is in no checkpoint, and rounds begin at the restored step.
        local_init.append(push.start_op)
    scaffold = v1.train.Scaffold(
        saver=saver,
        local_init_op=tf.group(*local_init),
        ready_for_local_init_op=v1.report_uninitialized_variables(kept),
    )
    if is_chief:
        creator = v1.train.ChiefSessionCreator(
            scaffold, master=target, config=config, checkpoint_dir=checkpoint_dir
        )
    else:
        creator = _WorkerSessionCreator(
            scaffold, master=target, config=config, max_wait_secs=int(START_TIMEOUT_S)
        )
    return _Session(creator, hooks), saver


def restored_step(session: v1.train.SingularMonitoredSession, global_step: tf.Variable) -> int:
    """The global step now, read without the hooks."""
    return int(session.run_step_fn(lambda step_context: step_context.session.run(global_step)))
