"""From runs on disk to one report file, written whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from deepinsight.errors import DeepInsightError
from deepinsight.report.page import render_page
from deepinsight.report.sections import comparison_section, run_sections
from deepinsight.report.summary import summarise_run
from deepinsight.traces import Run, open_run

MOST_VARIABLES = 6


class ReportError(DeepInsightError, OSError):
    """The report cannot be written where it was asked for."""


def write_report(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    title: str | None = None,
    most_variables: int = MOST_VARIABLES,
) -> Path:
    """Write one self-contained HTML file about one run or several.

    The file appears under its name only once it is complete; an older one stays as it is if
    something goes wrong.

    Args:
        paths: Folders of the runs, in the order of their sections; at least one.
        output: The file to write.
        title: Of the document; by default it names the runs.
        most_variables: Variables per run that get their own figures, >= 0.

    Returns:
        The path of the file.

    Raises:
        ValueError: If ``paths`` is empty or ``most_variables`` is negative.
        TraceNotFoundError: If there is no run at a path.
        ReportError: If the file cannot be written.
    """
    if not paths:
        raise ValueError("A report needs at least one run. Received: paths=[].")
    if most_variables < 0:
        raise ValueError(f"`most_variables` must be >= 0. Received: {most_variables}.")
    target = Path(output)
    with contextlib.ExitStack() as stack:
        runs = name_runs([stack.enter_context(open_run(Path(path))) for path in paths])
        pages = render_page(
            title or f"DeepInsight report: {', '.join(runs)}",
            {name: summarise_run(run) for name, run in runs.items()},
            comparison_section(runs) if len(runs) > 1 else None,
            {name: run_sections(run, most_variables) for name, run in runs.items()},
        )
        _write_whole(target, pages)
    return target


def name_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Give each run a name of its own: its folder's, with the folders above where that repeats."""
    parts = [Path(run.path).resolve().parts for run in runs]
    named: dict[str, Run] = {}
    for run, own in zip(runs, parts, strict=True):
        depth = 1
        alike = [other for other in set(parts) if other != own]
        while depth < len(own) and any(other[-depth:] == own[-depth:] for other in alike):
            depth += 1
        named["/".join(own[-depth:])] = run
    return named


def _write_whole(target: Path, pieces: Iterator[str]) -> None:
    if target.is_dir():
        raise ReportError(f"The report must be a file. Received: {target}, a folder.")
    partial = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        with open(partial, "x", encoding="utf-8") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, DeepInsightError):
            raise
        raise ReportError(
            f"The report cannot be written to {target}: {error.strerror or error}. Choose a file "
            "in a folder that exists and that you may write to."
        ) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
