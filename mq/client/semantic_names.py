"""Renames RocketMQ's attributes in spans: names of 2024, or later ones if OpenTelemetry's variable asks for them.

OpenTelemetry renamed ``messaging.rocketmq.*`` to ``rocketmq.*``. Its rule for libraries that use earlier names: keep
them, until the application sets ``OTEL_SEMCONV_STABILITY_OPT_IN``, a list with commas, to ``messaging`` (the new names
alone) or ``messaging/dup`` (both, for the time in which dashboards change).
"""

from __future__ import annotations

from typing import Any, Final

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
"""The environment variable."""

_OLD: Final = "messaging.rocketmq."
_NEW: Final = "rocketmq."


def choice(opt_in: str | None) -> tuple[bool, bool]:
    """Return whether a value of the variable asks for the old names, and whether for the new ones.

    ``messaging/dup`` wins over ``messaging``, as the conventions say; entries for other libraries are ignored.
    """
    options = {each.strip() for each in (opt_in or "").split(",")}
    is_both = "messaging/dup" in options
    return is_both or "messaging" not in options, is_both or "messaging" in options


def rename(attributes: dict[str, Any], opt_in: str | None) -> dict[str, Any]:
    """Rename the attributes of a span from the old names to those that a value of the variable asks for."""
    is_old, is_new = choice(opt_in)
    if not is_new:
        return attributes
    new_names = {
        _NEW + name.removeprefix(_OLD) if name.startswith(_OLD) else name: attributes[name] for name in attributes
    }
    return attributes | new_names if is_old else new_names
