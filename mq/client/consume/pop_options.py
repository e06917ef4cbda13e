"""Checks the options of a pop consumer, and encodes its heartbeat."""

from __future__ import annotations

from mq.filter.subscription import Subscription
from mq.protocol.requests.clients import ClientBehindProxy, HeartbeatOfProxy

INVISIBLE_SECONDS_MAX = 12 * 3600.0


def popping_heartbeat(client_id: str, group: str, subscription: Subscription) -> bytes:
    """Encode the heartbeat of a member that pops. It is sent as a client behind a proxy, so that it gets no queues."""
    row = subscription.topic, subscription.expression or "*", subscription.expression_type or "TAG"
    own = ClientBehindProxy(client_id=client_id, group=group, address="", language="PYTHON", subscriptions=[row])
    return HeartbeatOfProxy(client_id, proxied_clients=[own]).encode()


def check_pop_options(
    consume_from: str,
    invisible: float,
    ahead: int,
    hold_seconds: float,
    timeout: float,
    *,
    ordered: bool,
    renew: bool,
) -> None:
    """Raise ValueError for invalid arguments of a `PopConsumer`."""
    if not 0.001 <= invisible <= INVISIBLE_SECONDS_MAX:
        raise ValueError(f"invisible is {invisible}; allowed: 0.001 to {INVISIBLE_SECONDS_MAX}")
    if consume_from not in ("first", "last"):
        raise ValueError(f"consume_from is {consume_from!r}, neither 'first' nor 'last'")
    if ahead < 0 or (ordered and not ahead):
        raise ValueError(f"ahead is {ahead}; with ordered at least 1, otherwise at least 0")
    if hold_seconds <= 0 or timeout <= 0:
        raise ValueError(f"hold_seconds {hold_seconds} and timeout {timeout} must be positive")
    if ordered and renew:
        raise ValueError("renew is not allowed with ordered=True: pass an `invisible` longer than the handling")
