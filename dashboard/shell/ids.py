"""Identifiers of the shell's components."""

from enum import StrEnum
from typing import Any

from dash import ALL


class Shell(StrEnum):
    """Components that are on every page."""

    URL = "shell-url"
    SHOWN = "shell-shown"
    NAVIGATION = "shell-navigation"
    PAGE = "shell-page"


def query_id(page: str) -> dict[str, str]:
    """The store in which a page says what its query should be."""
    return {"type": "query", "page": page}


def any_query_id() -> dict[str, Any]:
    """The query store of whichever page is shown."""
    return {"type": "query", "page": ALL}
