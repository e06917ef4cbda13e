"""Compiles the address patterns of white lists. Pure.

RocketMQ's syntax: ``*`` matches all; ``192.168.1.7``; ``192.168.1.*`` and ``192.168.*.*``; ``192.168.1.10-20``;
``192.168.1.{7,9}``; several patterns separated by commas. IPv6 addresses are complete or end in ``*``. In addition,
networks: ``10.0.0.0/8``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

Matches = Callable[[str], bool]
"""Whether a pattern matches an address (without port)."""

_PART: Final = re.compile(r"\*|[0-9]{1,3}(-[0-9]{1,3})?")
_BRACES: Final = re.compile(r"(.*)\{([^{}]*)\}(.*)")
_OUTSIDE_BRACES: Final = re.compile(r",(?![^{}]*\})")


def compile_pattern(pattern: str) -> Matches:
    """Compile a pattern; a blank one matches nothing. Raises ValueError if it is malformed."""
    alternatives = [_one(text) for part in _OUTSIDE_BRACES.split(pattern) for text in _expand(part.strip()) if text]
    return lambda address: any(matches(_canonical(address)) for matches in alternatives)


def is_loopback(host: str) -> bool:
    """Whether a server that listens on this host is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _expand(part: str) -> list[str]:
    braces = _BRACES.fullmatch(part)
    if braces is None:
        return [part]
    before, inside, behind = braces.groups()
    return [f"{before}{each.strip()}{behind}" for each in inside.split(",") if each.strip()]


def _one(text: str) -> Matches:
    if text in ("*", "*.*.*.*"):
        return lambda address: True
    if "/" in text:
        network = ipaddress.ip_network(text, strict=False)
        return lambda address: _in_network(address, network)
    if ":" in text:
        return _ipv6(text)
    parts = text.split(".")
    if len(parts) != 4 or not all(map(_PART.fullmatch, parts)):
        raise ValueError(f"{text!r} is not an address pattern")
    ranges = [_range(part) for part in parts]

    def matches(address: str) -> bool:
        numbers = address.split(".")
        return len(numbers) == 4 and all(
            number.isdecimal() and low <= int(number) <= high
            for number, (low, high) in zip(numbers, ranges, strict=True)
        )

    return matches


def _range(part: str) -> tuple[int, int]:
    low, _, high = ("0-255" if part == "*" else part).partition("-")
    first, last = int(low), int(high or low)
    if not first <= last <= 255:
        raise ValueError(f"{part!r} is not a range of 0 to 255")
    return first, last


def _ipv6(text: str) -> Matches:
    if text.endswith("*"):
        start = text.rstrip("*").lower()
        return lambda address: ":" in address and ipaddress.IPv6Address(address).exploded.startswith(_explode(start))
    pattern = ipaddress.IPv6Address(text)
    return lambda address: ":" in address and ipaddress.IPv6Address(address) == pattern


def _explode(start: str) -> str:
    groups = start.split(":")
    return ":".join([*(group.zfill(4) for group in groups[:-1]), groups[-1]])


def _in_network(address: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    return ipaddress.ip_address(address) in network


def _canonical(address: str) -> str:
    """The address without the zone of a link-local address; an IPv4-mapped IPv6 address becomes IPv4."""
    return address.partition("%")[0].removeprefix("::ffff:")
