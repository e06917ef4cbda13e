"""How our field names become those of the wire: in camel case, but for the ones that we call otherwise."""

from __future__ import annotations

from collections.abc import Callable


def wire(**special: str) -> Callable[[str], str]:
    """A ``rename`` for a Struct: ``our_name="nameOnTheWire"`` for each exception, camel case for the rest."""

    def wire_name(name: str) -> str:
        if name in special:
            return special[name]
        first, *others = name.split("_")
        return first + "".join(word.capitalize() for word in others)

    return wire_name
