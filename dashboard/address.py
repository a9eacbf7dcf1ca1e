"""What a page shows, as the query of its address, so that a link can be shared."""

from collections.abc import Mapping
from urllib.parse import parse_qs, urlencode


def parse_query(search: object) -> dict[str, list[str]]:
    """Read ``?run=a&run=b``; anything that is not text reads as empty.

    Example:
        >>> parse_query("?run=a&run=b&step=10")
        {'run': ['a', 'b'], 'step': ['10']}
    """
    if not isinstance(search, str):
        return {}
    return parse_qs(search.removeprefix("?"), max_num_fields=64, errors="replace")


def make_query(values: Mapping[str, object]) -> str:
    """Write a query; None and empty values are left out, lists repeat their name.

    Example:
        >>> make_query({"run": ["a", "b/c"], "step": None})
        '?run=a&run=b%2Fc'
    """
    given = {name: value for name, value in values.items() if value not in (None, "", [])}
    return "?" + urlencode(given, doseq=True) if given else ""


def first(query: Mapping[str, list[str]], name: str, default: str | None = None) -> str | None:
    """The first value of a name, or the default."""
    return query.get(name, [default])[0]
