"""What the shell knows about a page."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dash import Dash


@dataclass(frozen=True)
class Page:
    """One entry of the navigation.

    Attributes:
        title: Its name.
        path: Its path in the address.
        build: Makes the layout from the runs folder and the parsed query.
        register: Wires its callbacks.
        needs_run: Whether it shows one run, named in the query.
    """

    title: str
    path: str
    build: Callable[[Path, dict[str, list[str]]], Any]
    register: Callable[[Dash, Path], None]
    needs_run: bool = True
