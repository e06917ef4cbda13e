"""Tracks whether topics or groups of a request were created, even if they are deleted again before its response.

One log entry may create a topic and delete it: when the first request is answered, both commands are applied.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Final


class Creation:
    """The ``names`` that a request creates: those that did not exist at any time since the request arrived."""

    __slots__ = ("__weakref__", "names")

    def __init__(self, names: set[str]) -> None:
        self.names: Final = names


class Creations:
    """Tracks the requests to create topics or groups until the log has applied them."""

    def __init__(self, what: str) -> None:
        """``what`` names what is created: a topic or a group."""
        self._what: Final = what
        self._creations: Final[weakref.WeakSet[Creation]] = weakref.WeakSet()

    def begin(self, names: Collection[str], table: Collection[str]) -> Creation:
        """Start tracking a request that creates ``names``. Those in ``table`` exist already."""
        creation = Creation({name for name in names if name not in table})
        self._creations.add(creation)
        return creation

    def exists(self, name: str) -> None:
        """Mark ``name`` as created, because the log entry being applied creates or changes it."""
        for creation in self._creations:
            creation.names.discard(name)

    def not_created(self, creation: Creation) -> str:
        """Return the text for a request of which a name was not created, although there is room for it now."""
        assert creation in self._creations, f"a creation that was not begun lacks {creation.names}"
        assert creation.names, f"no {self._what} of the request is missing"
        name = min(creation.names)
        return f"the {self._what} {name} was not created: until just now there was no room; send the request again"
