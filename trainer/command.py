"""``deepinsight train``: train a model on local processes, or take a place in a cluster."""

import argparse
import importlib
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from deepinsight.errors import DeepInsightError
from deepinsight.trainer import kernels
from deepinsight.trainer import options as known
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
    REPLICATIONS,
    SETTINGS,
    SYNCHRONIZATIONS,
    Setting,
    default_optimizer,
)

DESCRIPTION = """\
Train a model on parameter servers and workers, and record the run.

Without TF_CONFIG in the environment all processes are started on this machine; --workers 1 --ps 0
is a plain run in one process. With TF_CONFIG (jobs chief, worker and ps) this process takes its
place in a cluster: start it with the same options everywhere.
"""
DEFAULT_STEPS = 2000


def parser() -> argparse.ArgumentParser:
    """The command line; defaults that depend on other options are left to `Options`."""
    top = argparse.ArgumentParser(
        "deepinsight train",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    run = top.add_argument_group("run")
    run.add_argument(
        "--run-dir", metavar="DIR", help="where (default: runs/, named by the options)"
    )
    run.add_argument("--resume", action="store_true", help="continue the run in --run-dir")
    run.add_argument("--steps", type=int, help=f"global steps (default: {DEFAULT_STEPS})")
    run.add_argument(
        "--epochs", type=int, help="passes over each worker's data (default: no limit)"
    )
    run.add_argument("--batch-size", type=int, help="examples per worker and step (default: 100)")
    run.add_argument("--eval-every", type=int, help="global steps; 0: at the end (default: 200)")
    run.add_argument(
        "--checkpoint-every", type=int, help="global steps; 0: no checkpoints (default: 1000)"
    )
    run.add_argument(
        "--trace-every",
        type=int,
        help="global steps between snapshots of weights and gradients; 0: none (default: 100)",
    )
    run.add_argument("--seed", type=int, help="of weights and batches (default: 1)")
    _add_model(top.add_argument_group("model and update rule"))
    _add_data(top.add_argument_group("data"))
    _add_cluster(top.add_argument_group("cluster"))
    _add_synchronization(top.add_argument_group("synchronization"))
    return top


def _add_model(group: Any) -> None:
    group.add_argument("--model", choices=known.MODELS, help="(default: wide-deep)")
    group.add_argument(
        "--hidden",
        type=_widths,
        metavar="N,N,…",
        help="widths of the tower (default: dense 256,128,64,32; wide-deep 64,32)",
    )
    group.add_argument("--embedding-dim", type=int, help="wide-deep (default: 16)")
    group.add_argument("--input-width", type=int, help="dense: input columns (default: 1130)")
    group.add_argument(
        "--optimizer",
        choices=known.OPTIMIZERS,
        help="(default: adagrad; gradient-compression sgd, kfac momentum)",
    )
    group.add_argument(
        "--learning-rate",
        type=float,
        help=f"(default: {_defaults(known.DEFAULT_LEARNING_RATES)})",
    )
    group.add_argument(
        "--momentum",
        type=float,
        help="of momentum, boosted-momentum and lars, and of gradient-compression on the worker "
        "(default: 0.9)",
    )
    group.add_argument(
        "--nesterov",
        action="store_true",
        help=f"look ahead ({', '.join(known.NESTEROV)}); with elastic-average it makes EAMSGD",
    )
    group.add_argument(
        "--variance-parameter",
        type=float,
        help=f"λ of dc-asgd (default: {_defaults(known.DEFAULT_VARIANCE_PARAMETERS)})",
    )
    group.add_argument(
        "--boost", type=float, help="boosted-…: strength λ of the correction (default: 0.5)"
    )
    group.add_argument(
        "--staleness-scale",
        type=float,
        help="boosted-…: staleness that halves the correction (default: 10)",
    )


def _defaults(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _add_data(group: Any) -> None:
    group.add_argument("--data", choices=known.DATA, help="(default: digits)")
    group.add_argument("--data-path", metavar="FILE", help="criteo: the file, .gz or plain")
    group.add_argument("--hash-buckets", type=int, help="criteo: IDs per category (default: 10000)")
    group.add_argument(
        "--held-out", type=int, help="ctr, criteo: held-out examples (default: 4096)"
    )
    group.add_argument("--ctr-groups", type=int, help="feature groups (default: 8)")
    group.add_argument("--ctr-slots", type=int, help="IDs per group (default: 2)")
    group.add_argument("--ctr-vocabulary", type=int, help="different IDs per group (default: 1000)")
    group.add_argument("--ctr-zipf", type=float, help="exponent of the Zipf law (default: 1.1)")
    group.add_argument("--ctr-click-rate", type=float, help="share of clicks (default: 0.2)")
    group.add_argument("--ctr-signal", type=float, help="spread of the true score (default: 1.5)")
    group.add_argument(
        "--ctr-drift", type=int, help="examples per turn of the truth; 0: none (default: 0)"
    )
    group.add_argument(
        "--ctr-leak", type=float, help="strength 0 to 1 of a leaking group (default: 0: no group)"
    )


def _add_cluster(group: Any) -> None:
    group.add_argument("--ps", type=int, help="parameter servers (default: 1)")
    group.add_argument("--workers", type=int, help="(default: 2)")
    group.add_argument(
        "--barrier-timeout",
        type=float,
        help="seconds that workers wait for each other: at the start, for a round, and the chief "
        "at the end while no one makes a step; then they go on without who is late (default: 60)",
    )
    group.add_argument(
        "--replication",
        choices=REPLICATIONS,
        help="in-graph: one client that drives all workers (default: between-graph)",
    )
    group.add_argument(
        "--placement",
        metavar="layers=P,P,…",
        help="where each layer of the tower is computed: here, ps:K or, in-graph, worker:K",
    )


def _add_synchronization(group: Any) -> None:
    group.add_argument("--synchronization", choices=SYNCHRONIZATIONS, help="(default: async)")
    for name, setting in SETTINGS.items():
        flag, text = "--" + name.replace("_", "-"), _described(setting)
        if setting.type is bool:
            group.add_argument(flag, action="store_true", help=text)
        else:
            group.add_argument(flag, type=setting.type, metavar="VALUE", help=text)


def _described(setting: Setting) -> str:
    """The synchronizations that a setting belongs to, what it is, and its defaults."""
    shown = {
        name: value
        for name, value in setting.of.items()
        if value is not None and not isinstance(value, bool) and not callable(value)
    }
    different = len(set(shown.values())) > 1
    defaults = _defaults(shown) if different else "".join(map(str, {*shown.values()}))
    ending = f" (default: {defaults})" if shown else ""
    return f"{', '.join(setting.of)}: {setting.help}{ending}"


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers with commas between them, such as 64,32. Received: {text!r}"
        ) from None


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
