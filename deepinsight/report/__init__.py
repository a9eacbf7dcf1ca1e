"""The report: one HTML file with a run's figures and numbers that needs nothing else."""

from deepinsight.report.summary import LatestValue, RunSummary, summarise_run
from deepinsight.report.writer import ReportError, write_report

__all__ = ["LatestValue", "ReportError", "RunSummary", "summarise_run", "write_report"]
