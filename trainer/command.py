"""``deepinsight train``: train a model on local processes, or take a place in a cluster."""

import importlib
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from deepinsight.errors import DeepInsightError
from deepinsight.trainer import kernels
from deepinsight.trainer import options as known
from deepinsight.trainer.arguments import DEFAULT_STEPS, parser
from deepinsight.trainer.cluster.launcher import LAUNCH_VARIABLE, Interrupted, launch
from deepinsight.trainer.cluster.lifetime import Termination, die_with_parent
from deepinsight.trainer.cluster.topology import Topology, read_tf_config
from deepinsight.trainer.cluster.watch import Watch, appear
from deepinsight.trainer.errors import ClusterError, OptionError
from deepinsight.trainer.options import Options, checkpoint_step, has_checkpoint
from deepinsight.trainer.progress import (
    EVENTS_VARIABLE,
    Display,
    Event,
    Reporter,
    count,
    pipe_reporter,
    summary,
)
from deepinsight.trainer.synchronization import (
    KERNELS,
    default_optimizer,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    die_with_parent()
    given = vars(parser().parse_args(arguments))
    try:
        topology = _place(given)
        options = _options(given)
        if topology is not None:
            _be_task(options, topology)
        _check_run_dir(options)
        _check_data(options)
        _prepare(options)
        if options.ps == 0:
            _run_alone(options)
        return _run_cluster(options, arguments)
    except DeepInsightError as error:
        return _say(error)


def _say(error: DeepInsightError) -> int:
    """Print an error; returns the exit status for it."""
    print(f"deepinsight train: {error}", file=sys.stderr)
    return 2 if isinstance(error, OptionError) else 1


def _be_task(options: Options, topology: Topology) -> NoReturn:
    """Be one process of a cluster, and end whatever TensorFlow's threads are waiting for."""
    try:
        status = _run_task(options, topology)
    except DeepInsightError as error:
        status = _say(error)
    except Exception:
        traceback.print_exc()
        status = 1
    _leave(status)


def _place(given: dict[str, Any]) -> Topology | None:
    """This process's place in a cluster, and the sizes of the cluster put into `given`."""
    if "TF_CONFIG" not in os.environ:
        return None
    topology = read_tf_config(os.environ["TF_CONFIG"])
    for name, size in (("ps", len(topology.ps)), ("workers", len(topology.workers))):
        if given.setdefault(name, size) != size:
            raise OptionError(
                f"--{name} must agree with TF_CONFIG, which has {size}. Received: {given[name]}. "
                f"Leave it out."
            )
    return topology


def _options(given: dict[str, Any]) -> Options:
    if "run_dir" not in given:
        if given.get("resume"):
            raise OptionError("--resume needs --run-dir, the run to continue.")
        if "TF_CONFIG" in os.environ:
            raise OptionError("In a cluster --run-dir must be given, the same for every process.")
        given = {**given, "run_dir": _new_run_dir(given)}
    if given.get("resume") and (Path(given["run_dir"]) / "run.json").exists():
        given = Options.taken_over(given, _config(given["run_dir"]))
    elif "steps" not in given:
        given = {**given, "steps": None if "epochs" in given else DEFAULT_STEPS}
    return Options(**given)


def _config(run_dir: str) -> dict[str, Any]:
    from deepinsight.traces import open_run

    with open_run(run_dir) as run:
        return dict(run.config)


def _new_run_dir(given: dict[str, Any]) -> str:
    synchronization = given.get("synchronization", Options.synchronization)
    parts = [
        given.get("data", Options.data),
        given.get("model", Options.model),
        given.get("optimizer", default_optimizer(synchronization)),
        synchronization,
        time.strftime("%Y%m%d-%H%M%S"),
    ]
    return str(Path("runs") / "-".join(parts))


def _check_run_dir(options: Options) -> None:
    """Refuse to write over a run, or to continue what is not there or is something else."""
    path = Path(options.run_dir)
    exists = (path / "run.json").exists()
    if not options.resume:
        if exists:
            raise OptionError(
                f"--run-dir {path} already holds a run. Give another one, or --resume to continue."
            )
        return
    if not exists:
        raise OptionError(f"--resume: there is no run in --run-dir {path}.")
    if not has_checkpoint(options.run_dir):
        raise OptionError(
            f"--resume: {path} has no checkpoint. It was trained with --checkpoint-every 0 or "
            f"ended before its first; start a new run."
        )
    config = _config(options.run_dir)
    options.check_resumes(config)
    step = checkpoint_step(options.run_dir)
    if options.steps and step is not None and step >= options.steps:
        raise OptionError(
            f"--resume: {path} is already at step {step}; give a larger --steps. Received: "
            f"{options.steps}."
        )
    for difference in options.differences(config):
        print(f"--resume: {difference}", flush=True)


def _check_data(options: Options) -> None:
    """Look at the data file before anything is started."""
    if options.data == "criteo":
        check = importlib.import_module("deepinsight.trainer.data.criteo").check_file
        try:
            check(options.data_path)
        except DeepInsightError as error:
            raise OptionError(f"--data-path: {error}") from error


def _prepare(options: Options) -> None:
    """Compile the kernels that the run needs, if they are new on this machine."""
    if options.optimizer in known.KERNELS or options.synchronization in KERNELS:
        _quiet()
        _import("tensorflow")
        kernels.ops()


def _run_cluster(options: Options, arguments: Sequence[str]) -> int:
    display = Display(options.steps)
    display.line(
        f"{options.model} on {options.data}, {options.synchronization} {options.optimizer}: "
        f"{options.ps} ps, {count(options.workers, 'worker')}; logs in {options.run_dir}/logs"
    )
    display.line(
        f"starting {options.ps + options.workers} processes; their first steps take 10 to 30 s"
    )
    command = ["-m", "deepinsight.trainer.command", *arguments, "--run-dir", options.run_dir]
    try:
        launch(
            command,
            options.run_dir,
            ps=options.ps,
            workers=options.workers,
            report=display,
            expendable=options.replication != "in-graph",
        )
    except Interrupted as signal:
        display.clear()
        display.line(f"ended by {signal}; the run is in {options.run_dir}.{_resume_hint(options)}")
        return 128 + signal.number
    except ClusterError as error:
        display.clear()
        hint = _resume_hint(options)
        raise ClusterError(f"{error}\n\n{hint.strip()}" if hint else str(error)) from error
    display.clear()
    for line in summary(display, options.run_dir, _bayes_auc(options)):
        display.line(line)
    return 0


def _resume_hint(options: Options) -> str:
    """What to type to go on, where that is possible."""
    step = checkpoint_step(options.run_dir)
    if step is None:
        return ""
    return f" --run-dir {options.run_dir} --resume continues it from step {step}."


def _run_alone(options: Options) -> NoReturn:
    """Train in this process."""
    display = Display(options.steps)
    _quiet()
    termination = Termination()
    with _notices_to(Path(options.run_dir) / "logs" / "main.log"):
        _train(options, None, display, termination, time.time())
    display.clear()
    if termination.requested.is_set():
        display.line(f"ended by a signal; the run is in {options.run_dir}.{_resume_hint(options)}")
    else:
        for line in summary(display, options.run_dir, _bayes_auc(options)):
            display.line(line)
    _leave(termination.exit_status)


@contextmanager
def _notices_to(log: Path) -> Iterator[None]:
    """Have what is written to standard error, TensorFlow's notices, go to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _run_task(options: Options, topology: Topology) -> int:
    """Take one place in a cluster; returns the exit status."""
    _quiet()
    if topology.job == "ps" or (options.replication == "in-graph" and not topology.is_chief):
        barriers = _import("deepinsight.trainer.cluster.barriers")
        _prepare(options)  # a server runs the ops of its variables
        barriers.serve(topology)
        return 0
    termination = Termination()
    events = os.environ.get(EVENTS_VARIABLE)
    if events is not None:
        report: Reporter = pipe_reporter(int(events))
    else:
        display = Display(options.steps)
        report = _only_mine(display, topology)
        if topology.is_chief:
            _check_run_dir_as_chief(options, topology)
    launched = float(os.environ.get(LAUNCH_VARIABLE, time.time()))
    _train(options, topology, report, termination, launched)
    if events is None and topology.is_chief:
        display.clear()
        alone = len(topology.workers) > 1
        for line in summary(display, options.run_dir, _bayes_auc(options), alone=alone):
            display.line(line)
    return termination.exit_status


def _check_run_dir_as_chief(options: Options, topology: Topology) -> None:
    """Refuse as `_check_run_dir` does, and have the other processes notice."""
    try:
        _check_run_dir(options)
    except DeepInsightError as error:
        _say(error)
        others = {address: address for address in (*topology.ps, *topology.workers[1:])}
        appear(topology.workers[0], Watch(others), list(others))
        _leave(2)


def _only_mine(display: Display, topology: Topology) -> Reporter:
    """Without a launcher every process shows its own start, and the chief the run."""

    def report(event: Event) -> None:
        if topology.is_chief or event["kind"] == "started":
            display(event)

    return report


def _train(
    options: Options,
    topology: Topology | None,
    report: Reporter,
    termination: Termination,
    launched_s: float,
) -> None:
    began = time.time()
    worker = _import("deepinsight.trainer.worker")
    import_s = time.time() - began
    data = _import("deepinsight.trainer.data").open_data(options)
    worker.Worker(
        options,
        data,
        topology,
        report=report,
        termination=termination,
        launched_s=launched_s,
        import_s=import_s,
    ).run()


def _import(name: str) -> Any:
    """Import what needs TensorFlow, or say how to get it."""
    try:
        with _import_notes_kept_back():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow", "sklearn"):
            raise
        raise OptionError(
            f"Training needs {error.name}. Install it with: pip install 'deepinsight[trainer]'"
        ) from error


@contextmanager
def _import_notes_kept_back() -> Iterator[None]:
    """Keep what TensorFlow's libraries write while they are loaded, and show it on failure only.

    They write to the file descriptor before their log levels can be set: about oneDNN, and that
    there is no graphics processor, which is not wanted here.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
            if "tensorflow" in sys.modules:
                tensorflow = sys.modules["tensorflow"]
                tensorflow.config.list_physical_devices()  # looks for them now, not later
                tensorflow.compat.v1.logging.set_verbosity(tensorflow.compat.v1.logging.ERROR)
        except BaseException:
            notes.seek(0)
            os.write(terminal, notes.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def _bayes_auc(options: Options) -> float | None:
    if options.data != "ctr" or options.ctr_drift:
        return None
    facts = _import("deepinsight.trainer.data").open_data(options).facts()
    return float(facts["bayes_auc"])


def _quiet() -> None:
    """Keep TensorFlow to the processor and its start-up notes out of the logs."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # not its notes on deprecation


def _leave(status: int) -> NoReturn:
    """End this process without waiting for TensorFlow's server threads, which never end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
