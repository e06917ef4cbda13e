"""Addresses of pages: names are parameters, since a path cannot have every name. Pure."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def link(path: str, **parameters: object) -> str:
    """The address of a page; parameters that are None or empty are left out."""
    query = {name: str(value) for name, value in parameters.items() if value is not None and value != ""}
    return f"{path}?{urlencode(query, quote_via=quote, errors='surrogatepass')}" if query else path
