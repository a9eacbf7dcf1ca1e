"""A cluster of local processes: started together, watched, ended together; no TensorFlow.

Every process gets the command line of this one and its place in ``TF_CONFIG``, as it would on a
real cluster. A worker that is killed or told to end after its first step is lost, and the others go
on. Any other death ends the run: that of the chief or a parameter server, and one with an error of
its own. So do SIGINT, SIGTERM and SIGHUP to the launcher. Once the chief has ended well the run is
complete, and no death spoils it. If the launcher itself is killed, the kernel ends its children
(`lifetime.die_with_parent`).
"""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from deepinsight.trainer.cluster.lifetime import FAILED, GRACE_S, PARENT_VARIABLE
from deepinsight.trainer.cluster.topology import tf_config
from deepinsight.trainer.errors import ClusterError
from deepinsight.trainer.progress import EVENTS_VARIABLE, Reporter

LAUNCH_VARIABLE = "DEEPINSIGHT_LAUNCHED_S"
CHIEF = "worker-0"
POLL_S = 0.1
END_TIMEOUT_S = 20.0
TOLD = 128  # a process that a signal told to end has this and the signal for its status
TAIL_LINES = 20
TAIL_BYTES = 16_384
NOTES = re.compile(  # TensorFlow's own: "I0000 00:00:…", "W0000 …", and what belongs to them
    r"[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] |WARNING: All log messages before absl|"
    r"To enable the following instructions|E\d{4} .*(cuda|cuInit)"
)


@dataclass(frozen=True)
class _Child:
    name: str
    job: str
    process: subprocess.Popen[bytes]
    log: Path


class Interrupted(Exception):  # noqa: N818 - it is a request, not an error
    """The launcher got a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def launch(
    arguments: Sequence[str],
    run_dir: str,
    *,
    ps: int,
    workers: int,
    report: Reporter,
    expendable: bool = True,
) -> None:
    """Run a cluster of local processes to its end.

    Args:
        arguments: Command line for ``python`` in every process.
        run_dir: Directory of the run; logs go to ``logs/<process>.log`` in it.
        ps: Number of parameter servers, >= 1.
        workers: Number of workers, >= 1.
        report: Takes the processes' events.
        expendable: Whether the run goes on without a worker that was killed; if not, the other
            workers serve the chief.

    Raises:
        ClusterError: If a process died that the others need; the message says which and shows the
            end of its log.
        Interrupted: If the launcher was told to stop. In either case no process is left.
    """
    logs = Path(run_dir) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        addresses = [_reserve_port(stack) for _ in range(ps + workers)]
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        _raise_on_signals(stack)
        children: list[_Child] = []
        word = FAILED
        try:
            try:
                _start(
                    children,
                    arguments,
                    logs,
                    ps=addresses[:ps],
                    workers=addresses[ps:],
                    events=writing,
                )
            finally:
                os.close(writing)
            _Vigil(children, reading, report, expendable=expendable).keep()
        except Interrupted:
            word = signal.SIGTERM
            raise
        finally:
            _end(children, word, expendable=expendable)


def _reserve_port(stack: ExitStack) -> str:
    """An address whose port stays ours until the stack unwinds.

    The port is bound here with SO_REUSEPORT and never listened on; the child's server binds it too
    (``TF_GRPC_REUSE_PORT``) and gets all connections. So no other process can take it in between.
    """
    holder = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{holder.getsockname()[1]}"


def _raise_on_signals(stack: ExitStack) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        for again in numbers:
            signal.signal(again, signal.SIG_IGN)  # ending the children is not to be interrupted
        raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        stack.callback(signal.signal, number, signal.signal(number, interrupt))


def _start(
    children: list[_Child],
    arguments: Sequence[str],
    logs: Path,
    *,
    ps: Sequence[str],
    workers: Sequence[str],
    events: int,
) -> None:
    """Start the processes, adding each to `children` at once."""
    for job, addresses in (("ps", ps), ("worker", workers)):
        for index in range(len(addresses)):
            name = f"{job}-{index}"
            environment = {
                **os.environ,
                "TF_CONFIG": tf_config(ps, workers, job, index),
                "TF_GRPC_REUSE_PORT": "1",
                "PYTHONUNBUFFERED": "1",
                PARENT_VARIABLE: str(os.getpid()),
                EVENTS_VARIABLE: str(events),
                LAUNCH_VARIABLE: repr(time.time()),
            }
            log = logs / f"{name}.log"
            with log.open("ab") as out:
                process = subprocess.Popen(
                    [sys.executable, *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    pass_fds=[events],
                    start_new_session=True,  # Ctrl-C goes to the launcher alone
                )
            children.append(_Child(name, job, process, log))


class _Vigil:
    """Passes events on until the workers have ended."""

    def __init__(
        self, children: Sequence[_Child], reading: int, report: Reporter, *, expendable: bool
    ) -> None:
        self._children, self._reading, self._report = children, reading, report
        self._expendable = expendable
        self._rest = b""
        self._began: set[str] = set()  # workers that have made a step
        self._lost: set[str] = set()
        self._stopped_s: float | None = None  # since when a server has been told to stop

    def keep(self) -> None:
        """Watch until all is over.

        Raises:
            ClusterError: If a process died that the others need, or one does not end.
        """
        while True:
            ended = [(child, child.process.poll()) for child in self._children]
            over = all(status is not None for child, status in ended if child.job == "worker")
            readable, more = self._read(0 if over else POLL_S)
            if more:
                continue
            self._mourn(ended)
            if over or self._is_overdue(ended):
                return
            if readable:  # the end of the pipe: all children have ended, wait for their statuses
                time.sleep(POLL_S)

    def _read(self, wait_s: float) -> tuple[bool, bool]:
        """Pass on what is there; whether something was, and whether more may come."""
        readable, _, _ = select.select([self._reading], [], [], wait_s)
        if not readable:
            return False, False
        chunk = os.read(self._reading, 1 << 16)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["kind"] == "started":
                self._began.add(event["process"])
            self._report(event)
        return True, bool(chunk)

    def _mourn(self, ended: Sequence[tuple[_Child, int | None]]) -> None:
        complete = _chief_ended_well(ended)
        for child, status in ended:
            if status in (None, 0) or child.name in self._lost:
                continue
            begun = child.name in self._began - {CHIEF}
            failed = 0 < status < TOLD
            if not complete and (failed or not begun or not self._expendable):
                raise ClusterError(_obituary(child, status))
            self._lost.add(child.name)
            how = _death(status) + (f" (see {child.log})" if failed else "")
            self._report({"kind": "lost", "process": child.name, "how": how})

    def _is_overdue(self, ended: Sequence[tuple[_Child, int | None]]) -> bool:
        """Whether the servers have stopped, and some worker has not for too long."""
        if not any(status == 0 for child, status in ended if child.job == "ps"):
            return False
        self._stopped_s = self._stopped_s or time.monotonic()
        if time.monotonic() - self._stopped_s < END_TIMEOUT_S:
            return False
        if not self._expendable or not _chief_ended_well(ended):
            raise ClusterError(_overdue(ended))
        how = f"did not end within {END_TIMEOUT_S:.0f} s after the others"
        for child, status in ended:
            if status is None:
                self._report({"kind": "lost", "process": child.name, "how": how})
        return True


def _chief_ended_well(ended: Sequence[tuple[_Child, int | None]]) -> bool:
    return (CHIEF, 0) in {(child.name, status) for child, status in ended}


def _death(status: int) -> str:
    if status > TOLD:
        return f"was told to end by {signal.Signals(status - TOLD).name}"
    if status >= 0:
        return f"ended with status {status}"
    how = f"was killed by {signal.Signals(-status).name}"
    if status == -signal.SIGKILL:
        how += " (by someone, or by the system for want of memory)"
    return how


def _obituary(child: _Child, status: int) -> str:
    tail = _tail(child.log)
    said = f" The end of {child.log}:\n\n{tail}" if tail else f" {child.log} says nothing of it."
    return f"{child.name} {_death(status)}, so the run was ended.{said}"


def _overdue(ended: Sequence[tuple[_Child, int | None]]) -> str:
    late = [child for child, status in ended if status is None]
    return (
        f"Training is over, but {', '.join(child.name for child in late)} did not end within "
        f"{END_TIMEOUT_S:.0f} s. See {late[0].log}.\n\n{_tail(late[0].log)}"
    )


def _tail(path: Path) -> str:
    """The last lines of a log that may say why a process died: a traceback, or a message."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip() and not NOTES.match(line)]
    return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])


def _end(children: Sequence[_Child], word: signal.Signals, *, expendable: bool) -> None:
    """Tell what is left to end: who trains first, so that it can save, then those who serve it."""
    trains = [c for c in children if c.job == "worker" and (expendable or c.name == CHIEF)]
    serves = [child for child in children if child not in trains]
    for mine, patience_s in ((trains, GRACE_S + 1.5), (serves, 0.5)):
        for child in mine:
            if child.process.poll() is None:
                child.process.send_signal(word)
        end = time.monotonic() + patience_s
        for child in mine:
            try:
                child.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
