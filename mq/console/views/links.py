"""Builds addresses of pages. Names are parameters, since a path cannot contain every name. Pure."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def link(path: str, **parameters: object) -> str:
    """Return the address of a page. Parameters that are None or empty are left out."""
    query = {name: str(value) for name, value in parameters.items() if value is not None and value != ""}
    return f"{path}?{urlencode(query, quote_via=quote, errors='surrogatepass')}" if query else path
