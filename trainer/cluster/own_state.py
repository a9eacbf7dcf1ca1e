"""State that belongs to one worker, kept beside the checkpoints of the model.

    <directory>/worker-<k>/<number>-step-<global step>/state.{index,data-…}

Each save is a directory of its own that gets its name when it is complete; the number rises with
each save. The model's own checkpoint is the chief's, and the workers do not stop for it, so the
two are rarely of the same step: `restore` takes the save nearest to the model's step.
"""

import logging
import operator
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from deepinsight.trainer.errors import TrainerError

v1 = tf.compat.v1
log = logging.getLogger(__name__)
KEPT = 2
_NAME = re.compile(r"(\d+)-step-(\d+)")


class OwnStateError(TrainerError, ValueError):
    """A worker's saved state does not fit its graph; the message names the directory."""


class _Save(NamedTuple):
    number: int
    step: int
    path: Path


class OwnState:
    """Saves and restores a worker's own variables; make it while the graph is built.

    Args:
        variables: The worker's variables, all of them on the worker.
        directory: The directory of the model's checkpoints, of one run.
        worker: Index of the worker, >= 0.

    Attributes:
        directory: Where this worker's saves are.

    Raises:
        ValueError: If there are no variables, or `worker` is out of range.
    """

    def __init__(
        self, variables: Sequence[tf.Variable], directory: str | Path, worker: int
    ) -> None:
        if not variables:
            raise ValueError("`variables` must be at least one variable. Received: none.")
        if not worker >= 0:
            raise ValueError(f"`worker` must be >= 0. Received: worker={worker}.")
        self._worker = worker
        self.directory = Path(directory) / f"worker-{worker}"
        self._named = {variable.op.name: variable for variable in variables}
        with tf.device(variables[0].device):
            self._saver = v1.train.Saver(self._named, max_to_keep=1)

    def save(self, session: v1.Session, step: int) -> Path:
        """Write the variables, and remove all but the newest two saves of different steps.

        Args:
            session: A session without hooks.
            step: The global step.

        Returns:
            The directory of the save.
        """
        saves = self._saves()
        number = saves[-1].number + 1 if saves else 0
        unfinished = self.directory / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with session.graph.as_default():  # eager execution would save something else
            self._saver.save(
                session, str(unfinished / "state"), write_meta_graph=False, write_state=False
            )
        path = self.directory / f"{number:08d}-step-{step}"
        os.replace(unfinished, path)
        kept = [save for save in saves if save.step != step][1 - KEPT :]
        for old in saves:
            if old not in kept:
                shutil.rmtree(old.path, ignore_errors=True)
        return path

    def restore(self, session: v1.Session, step: int) -> int | None:
        """Read the save that is nearest to the model's global step, of two equally near the older.

        At step 0 nothing has been sent and nothing waits, so nothing is read. What happened
        between the two steps is not in the state: gradients of that time are lost or, where they
        have been applied already, may be sent again. This is logged as a warning. So is the loss
        of everything where a worker that has been here before finds no save; one that comes for
        the first time, and has no directory yet, has nothing to lose.

        Args:
            session: A session without hooks; the variables must have been initialised.
            step: The global step that the model is at.

        Returns:
            The global step of the save that was read, or None.

        Raises:
            OwnStateError: If the save does not fit the variables.
        """
        came_before = self.directory.is_dir()
        self.directory.mkdir(parents=True, exist_ok=True)
        saves = self._saves()
        if not step:
            return None
        if not saves:
            log.log(
                logging.WARNING if came_before else logging.INFO,
                "Worker %d has no own state in %s, while the model is at step %d: what it had kept "
                "to itself, such as gradients not sent yet, is lost, and how much that was is "
                "unknown. It begins anew.",
                self._worker, self.directory, step,
            )  # fmt: skip
            return None
        best = min(saves, key=lambda save: (abs(save.step - step), save.step, -save.number))
        self._check(best.path)
        with session.graph.as_default():
            self._saver.restore(session, str(best.path / "state"))
        if best.step != step:
            log.warning(
                "Worker %d continues with its own state of step %d, while the model is at step "
                "%d: it lacks what happened in between; gradients may be lost or sent twice.",
                self._worker, best.step, step,
            )  # fmt: skip
        return best.step

    def _check(self, path: Path) -> None:
        """Compare names, shapes and dtypes; `Saver` would let another shape in."""
        wanted = {name: (v.shape.as_list(), v.dtype.base_dtype) for name, v in self._named.items()}
        try:
            reader = tf.train.load_checkpoint(str(path / "state"))
            dtypes = reader.get_variable_to_dtype_map()
            found = {n: (s, dtypes[n]) for n, s in reader.get_variable_to_shape_map().items()}
        except (ValueError, RuntimeError, tf.errors.OpError) as error:
            raise self._misfit(path, str(error).splitlines()[0]) from error
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                here, there = (_described(part.get(name)) for part in (wanted, found))
                raise self._misfit(path, f"{name!r} is {there} there and {here} here")

    def _misfit(self, path: Path, received: str) -> OwnStateError:
        return OwnStateError(
            f"{path} must hold the state of this worker's variables. Received: {received}; restore "
            f"with the options it was saved with, or remove {self.directory} to begin anew."
        )

    def _saves(self) -> list[_Save]:
        """All complete saves, in the order in which they were made."""
        found = []
        for path in self.directory.glob("*-step-*"):
            match = _NAME.fullmatch(path.name)
            if match:
                found.append(_Save(int(match[1]), int(match[2]), path))
        return sorted(found)


def _described(fact: tuple[list[int], tf.DType] | None) -> str:
    return f"{fact[1].name} {fact[0]}" if fact else "not"


class OwnStateHook(v1.train.SessionRunHook):
    """Restores a worker's own state at the start, and saves it every n steps and at the end.

    Args:
        variables: The worker's variables.
        directory: The directory of the model's checkpoints.
        worker: Index of the worker.
        steps: One of the variables, which counts the worker's steps; int64 scalar.
        every_n_steps: Steps of the worker between saves, >= 1; None: only at the end.

    Raises:
        ValueError: If `every_n_steps` is out of range.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        directory: str | Path,
        worker: int,
        *,
        steps: tf.Variable,
        every_n_steps: int | None,
    ) -> None:
        if every_n_steps is not None and not operator.index(every_n_steps) >= 1:
            raise ValueError(
                f"`every_n_steps` must be >= 1 or None. Received: every_n_steps={every_n_steps}."
            )
        self._every, self._saved = every_n_steps, 0
        self._state = OwnState(variables, directory, worker)
        self._steps = steps
        with tf.device(steps.device):
            self._now = steps.read_value()
        self._global_step: tf.Variable | None = None

    def begin(self) -> None:
        """Find the graph's global step.

        Raises:
            RuntimeError: If the graph has none.
        """
        self._global_step = v1.train.get_global_step()
        if self._global_step is None:
            raise RuntimeError(
                "The graph must have a global step, by which saves are found again. Received: "
                "none; call tf.compat.v1.train.get_or_create_global_step()."
            )

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Restore, whenever a session has been made."""
        self._state.restore(session, int(session.run(self._global_step)))
        self._saved = int(session.run(self._now))

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs:
        """Ask how many steps the worker has made."""
        return v1.train.SessionRunArgs(self._now)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Save when it is time."""
        if self._every is None:
            return
        due = self._saved + self._every
        # Read beside the step, it may be one behind.
        if run_values.results + 1 >= due and run_context.session.run(self._now) >= due:
            self._save(run_context.session)

    def end(self, session: v1.Session) -> None:
        """Save a last time."""
        self._save(session)

    def _save(self, session: v1.Session) -> None:
        self._state.save(session, int(session.run(self._global_step)))
        self._saved = int(session.run(self._now))
