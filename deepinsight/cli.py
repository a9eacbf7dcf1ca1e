"""The front door: ``deepinsight COMMAND ...``.

Each command lives in a wing and is imported only when it is asked for, so that looking at a trace
needs neither TensorFlow nor Dash.
"""

import importlib
import sys
from collections.abc import Sequence

from deepinsight.errors import DeepInsightError

_COMMANDS = {
    "train": ("deepinsight.trainer.command", "main", "train on a local cluster or in TF_CONFIG"),
    "dashboard": ("deepinsight.dashboard.command", "main", "look at runs in the browser, live"),
    "report": ("deepinsight.report.command", "main", "write one self-contained HTML file"),
    "inspect": ("deepinsight.traces.command", "inspect", "say what is in a trace"),
    "repair": ("deepinsight.traces.command", "repair", "save what a damaged trace still holds"),
    "kernels": ("deepinsight.trainer.kernels.command", "main", "compile the optimizer kernels"),
    "demo": ("deepinsight.demo", "main", "train twice, compare, report and serve"),
}
_EXTRAS = {
    "dash": "dashboard",
    "plotly": "dashboard",
    "sklearn": "trainer",
    "tensorflow": "trainer",
    "tsdownsample": "dashboard",
}


def _usage() -> str:
    lines = "\n".join(f"  {name:<10} {what}" for name, (_, _, what) in _COMMANDS.items())
    return (
        "usage: deepinsight COMMAND [ARGUMENT ...]\n\n"
        "See what happens inside a model while it trains, and what is wrong with it.\n\n"
        f"commands:\n{lines}\n\n'deepinsight COMMAND --help' says more."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Command and its arguments; those of the process, if None.

    Returns:
        Exit status: 0, or 1 for an error that is told on standard error, or 2 for wrong usage.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from deepinsight import __version__

        print(f"deepinsight {__version__}")
        return 0
    name, *rest = arguments
    if name not in _COMMANDS:
        print(f"deepinsight: there is no command {name!r}.\n\n{_usage()}", file=sys.stderr)
        return 2
    return _run(name, rest)


def _run(name: str, arguments: list[str]) -> int:
    """Import the command's wing, run it, and tell what a user can mend in one sentence."""
    module, function, _ = _COMMANDS[name]
    try:
        return int(getattr(importlib.import_module(module), function)(arguments))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        message = f"needs {error.name}: pip install 'deepinsight[{extra}]'."
    except DeepInsightError as error:
        message = f"{error}"
    except BrokenPipeError:
        # The reader of our output has gone, as with `deepinsight inspect RUN | head`.
        sys.stderr.close()
        return 1
    print(f"deepinsight {name}: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
