"""Which of several things lie on the same device."""

from collections.abc import Mapping
from typing import Any


def by_device(things: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of variables or tensors on each device, in the order given."""
    names: dict[str, list[str]] = {}
    for name, thing in things.items():
        names.setdefault(thing.device, []).append(name)
    return names
