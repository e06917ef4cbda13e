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
    """Remove and return a removed member's waiting pops: those that name it, or no member on its connections."""
    own = set(connections)

    def is_meant(pop: HeldPop) -> bool | None:
        ext = pop.call.request.ext
        if ext.consumer_group != group:
            return None
        pop_client_id = ext.client_id if isinstance(ext, PopExt) else None
        return pop.call.connection in own if pop_client_id is None else pop_client_id == client_id

    pops = [pop for key in list(polling.queue_keys) for pop in polling.take_matching(key, is_meant)]
    for pop in pops:
        pop.call.connection.held_pulls -= 1
        pulls = pop.call.connection.held_pulls
        assert pulls >= 0, f"{pulls} requests of a client are held, it was removed from {group}"
    return pops
