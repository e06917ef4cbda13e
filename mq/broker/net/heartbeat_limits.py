"""Limits what clients may register with their heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mq.protocol.names import NameRefused


class HeartbeatInvalid(Exception):
    """A heartbeat exceeds a limit or contains an invalid name. No part of it was applied."""


@dataclass(frozen=True, slots=True)
class HeartbeatLimits:
    """The limits of one heartbeat. A heartbeat above any of them is refused as a whole."""

    heartbeat_bytes_max: int = 2 * 1024 * 1024
    """Size of the body; the maximum subscriptions of a connection need about 1.4 MB."""
    client_id_length_max: int = 255
    groups_max: int = 256
    """Producer groups of one connection; the same limit applies to consumer groups."""
    subscriptions_max: int = 1024
    """Topics of one consumer group."""
    subscriptions_per_client_max: int = 8192
    """Topics of all consumer groups of one connection."""
    subscriptions_in_all_max: int = 200_000
    """Topics of all consumer groups of all connections; each takes about a kilobyte."""
    expressions_length_max: int = 262_144
    """Characters of all expressions of one connection; as sets of tags they take up to fifty times that memory."""
    expressions_length_in_all_max: int = 8 * 1024 * 1024
    """The same for all connections."""
    sql_length_max: int = 65_536
    """Characters of all SQL92 expressions of one connection; compiled, they take several hundred times that memory."""
    sql_length_in_all_max: int = 2 * 1024 * 1024
    """The same for all connections."""
    word_length_max: int = 64
    """Characters of an enumerated value, such as the message model."""
    proxied_clients_max: int = 20_000
    """Clients behind all proxies, each with its groups; some 500 bytes each. Further ones are not shown."""
    proxied_client_id_length_max: int = 384
    """A proxy puts the name of the user before the client's own id."""
    proxied_expressions_length_max: int = 4_096
    """Characters of the subscriptions of one client behind a proxy; with more, the client is not shown."""
    expiry_seconds: float = 120.0
    """A member expires if its last heartbeat is older."""


def check_word(word: str, limits: HeartbeatLimits) -> None:
    """Raise HeartbeatInvalid if an enumerated value is too long."""
    if len(word) > limits.word_length_max:
        raise HeartbeatInvalid(f"{word[:16]!r}... has {len(word)} characters; maximum: {limits.word_length_max}")


def check_name(check: Callable[[str], None], name: str) -> None:
    """Raise HeartbeatInvalid if ``check`` refuses ``name`` with NameRefused."""
    try:
        check(name)
    except NameRefused as error:
        raise HeartbeatInvalid(str(error)) from error
