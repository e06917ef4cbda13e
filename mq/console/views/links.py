"""Addresses of pages: names are parameters, since a path cannot have every name. Pure."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def link(path: str, **parameters: object) -> str:
    """The address of a page; parameters that are None or empty are left out."""
    given = {name: str(value) for name, value in parameters.items() if value is not None and value != ""}
    return f"{path}?{urlencode(given, quote_via=quote, errors='surrogatepass')}" if given else path
