"""One background thread that finishes what probes measured."""

import queue
import threading
from collections.abc import Callable


class Background:
    """Runs small jobs in order on a daemon thread.

    The queue is bounded: when the thread cannot keep up, ``submit`` waits, which the overhead meter
    sees, rather than dropping data in silence. Jobs handle their own errors.
    """

    def __init__(self, name: str, length: int = 64) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(length)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            finally:
                self._jobs.task_done()
        self._jobs.task_done()

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; after :meth:`close` it runs at once, here."""
        if self._thread.is_alive():
            self._jobs.put(job)
        else:
            job()

    def drain(self) -> None:
        """Wait until all jobs that were submitted are done."""
        if self._thread.is_alive():
            self._jobs.join()

    def close(self) -> None:
        """Finish the jobs and end the thread; calling it twice is fine."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
