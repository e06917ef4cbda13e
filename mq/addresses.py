"""Parses addresses and networks in the settings of servers."""

from __future__ import annotations

import ipaddress
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

METRICS_OFF: Final = "off"
"""Disables metrics, in place of an address."""
_METRICS_PORT_DISTANCE: Final = 100


def metrics_address_beside(address: tuple[str, int]) -> tuple[str, int] | None:
    """Return the default address for metrics of a server that listens at ``address``; None if there is no such port."""
    host, port = address
    port += _METRICS_PORT_DISTANCE if port else 0
    return (host, port) if port < 65536 else None


def parse_metrics_address(text: str) -> tuple[str, int] | None:
    """Parse an address for metrics, HOST:PORT; None for ``off``. Raises ValueError."""
    if text == METRICS_OFF:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is neither HOST:PORT nor `{METRICS_OFF}`")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:11011")
    return host.strip("[]"), int(port)


def parse_networks(text: str) -> list[Network]:
    """Parse networks from ``ADDRESS/BITS,...``. Raises ValueError."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]
