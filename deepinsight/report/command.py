"""``deepinsight report``: one HTML file about one run or several."""

import argparse
import sys
from pathlib import Path

from deepinsight.errors import DeepInsightError


def main(argv: list[str]) -> int:
    """Run the command.

    Args:
        argv: Arguments after ``deepinsight report``.

    Returns:
        Exit status: 0 once the file is there, 2 if a run or the file is not possible.
    """
    options = _parser().parse_args(argv)
    from deepinsight.report.writer import write_report

    try:
        written = write_report(
            options.runs, options.output, title=options.title, most_variables=options.variables
        )
    except (DeepInsightError, ValueError) as error:
        print(f"deepinsight report: {error}", file=sys.stderr)
        return 2
    megabytes = written.stat().st_size / 1e6
    print(f"Wrote {written} ({megabytes:.1f} MB). It opens in any browser, without network.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepinsight report",
        description="Write one HTML file with the figures of one run or several, side by side.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), help="file (report.html)"
    )
    parser.add_argument("--title", help="title of the document")
    parser.add_argument(
        "--variables",
        type=int,
        default=6,
        metavar="N",
        help="variables per run with figures of their own, the largest first (6)",
    )
    return parser
