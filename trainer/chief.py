"""What the chief does beside training: it evaluates and saves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from deepinsight.collectors import TraceHook
from deepinsight.trainer.data import DataSet
from deepinsight.trainer.evaluation import evaluate
from deepinsight.trainer.graph import TrainingGraph
from deepinsight.trainer.options import Options, checkpoint_dir
from deepinsight.trainer.progress import Reporter

v1 = tf.compat.v1


class Chores:
    """Evaluations and checkpoints, each at its multiples of the global step.

    Args:
        options: The run's options.
        data: The data set.
        graph: The chief's graph.
        report: Takes ``eval`` events.
        hook: Its writer takes the figures.
        saver: Saves what belongs to a checkpoint.
        start: Global step at which the chief begins.
    """

    def __init__(
        self,
        options: Options,
        data: DataSet,
        graph: TrainingGraph,
        *,
        report: Reporter,
        hook: TraceHook,
        saver: v1.train.Saver,
        start: int,
    ) -> None:
        self._options, self._data, self._graph = options, data, graph
        self._report, self._hook, self._saver = report, hook, saver
        self._path = str(Path(checkpoint_dir(options.run_dir)) / "model")
        self._evaluated = self._saved = -1
        self._step = start
        for part, examples in (
            ("eval", "the held-out part"),
            ("train", "a fixed sample of the training part"),
        ):
            for name, unit in (("loss", "nat"), ("auc", "1")):
                hook.writer.declare(
                    f"{part}/{name}", unit=unit, description=f"Evaluated on {examples}."
                )

    def at(self, session: v1.Session, step: int) -> None:
        """Do what is due between the last step that was seen and this one."""
        before, self._step = self._step, step
        if self._options.steps and step >= self._options.steps:
            return  # `finish` does it, once all workers are done
        if crossed(self._options.eval_every, before, step):
            self.evaluate(session, step)
        if crossed(self._options.checkpoint_every, before, step):
            self.save(session, step)

    def finish(self, session: v1.Session, interrupted: bool) -> None:
        """Evaluate (unless there is no time for it) and save a last time."""
        step = max(self._step, int(session.run(self._graph.global_step)))
        if not interrupted and step != self._evaluated:
            self.evaluate(session, step, last=True)
        if self._options.checkpoint_every and step != self._saved:
            self.save(session, step)

    def save(self, session: v1.Session, step: int) -> None:
        """Write a checkpoint."""
        if self._graph.set_step is not None:
            session.run(self._graph.set_step, {self._graph.new_step: step})
        self._saver.save(session, self._path, global_step=step, write_meta_graph=False)
        self._saved = step

    def evaluate(self, session: v1.Session, step: int, *, last: bool = False) -> None:
        """Evaluate on the held-out part and on a sample of the training part."""
        position = self._options.examples(step)
        logits: Callable[[Any], Any] = lambda ids: session.run(  # noqa: E731
            self._graph.evaluated, {self._graph.ids: ids}
        )
        held_out = evaluate(logits, self._data.held_out(position))
        training = evaluate(logits, self._data.training_sample(position))
        for part, result in (("eval", held_out), ("train", training)):
            self._hook.writer.record(f"{part}/loss", result.loss, step=step)
            self._hook.writer.record(f"{part}/auc", result.auc, step=step)
        self._evaluated = step
        self._report(
            {
                "kind": "eval",
                "step": step,
                "last": last,
                "loss": held_out.loss,
                "auc": held_out.auc,
                "train_loss": training.loss,
                "train_auc": training.auc,
            }
        )


def crossed(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]; never for 0."""
    return bool(every) and now // every > before // every
