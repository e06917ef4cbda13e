"""The waiting pops of a member that was removed from its group."""

from __future__ import annotations

from collections.abc import Iterable

from mq.broker.consume.long_polling import LongPolling
from mq.broker.net.connection import ClientConnection
from mq.broker.pop.reply import HeldPop
from mq.protocol.requests.pop import PopExt


def take_pops_of(
    polling: LongPolling[HeldPop], group: str, client_id: str, connections: Iterable[ClientConnection]
) -> list[HeldPop]:
    """Remove and return the held pops of a removed member: on its connections, or naming it."""
    own = set(connections)

    def is_meant(pop: HeldPop) -> bool | None:
        ext = pop.call.request.ext
        if ext.consumer_group != group:
            return None
        named = ext.client_id if isinstance(ext, PopExt) else None
        return pop.call.connection in own if named is None else named == client_id

    taken = [pop for key in list(polling.waiting) for pop in polling.take_matching(key, is_meant)]
    for pop in taken:
        pop.call.connection.held_pulls -= 1
        held = pop.call.connection.held_pulls
        assert held >= 0, f"{held} requests of a client are held, it was removed from {group}"
    return taken
