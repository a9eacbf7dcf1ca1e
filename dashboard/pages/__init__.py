"""The pages, in the order of the navigation."""

from deepinsight.dashboard.pages import auc, compare, optimizer, runs, staleness, weights
from deepinsight.dashboard.pages._page import Page

PAGES: tuple[Page, ...] = (
    Page("Runs", "/", runs.layout.build, runs.callbacks.register, needs_run=False),
    Page("Weights", "/weights", weights.layout.build, weights.callbacks.register),
    Page("Staleness", "/staleness", staleness.layout.build, staleness.callbacks.register),
    Page("Optimizer", "/optimizer", optimizer.layout.build, optimizer.callbacks.register),
    Page("AUC", "/auc", auc.layout.build, auc.callbacks.register),
    Page("Compare", "/compare", compare.layout.build, compare.callbacks.register, needs_run=False),
)


def page_at(path: str) -> Page:
    """The page of a path; the list of runs for any other."""
    return next((page for page in PAGES if page.path == path), PAGES[0])


__all__ = ["PAGES", "Page", "page_at"]
