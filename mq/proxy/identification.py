"""Authenticates the caller of a gRPC call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mq.protocol.access.acting import ActsFor
from mq.proxy.brief_cache import BriefCache
from mq.proxy.brokers import Brokers
from mq.proxy.callers import Call, Caller, caller_of
from mq.proxy.clients import Clients
from mq.proxy.mapping.authorization import AllowedTimes, user_of

_KNOWN_SECONDS: Final = 60.0
"""A signature that a broker has accepted is not checked again for this time. Brokers check each request all the same.
"""


class Identification:
    """Identifies the client that makes a call, and checks its signature.

    Args:
        allowed_times: the accepted times of signatures; None if clients need none, because brokers have no accounts.
    """

    def __init__(
        self, brokers: Brokers, clients: Clients, wall_clock_ms: Callable[[], int], allowed_times: AllowedTimes | None
    ) -> None:
        self._clients = clients
        self._wall_clock_ms = wall_clock_ms
        self._allowed_times = allowed_times
        self._accounts: BriefCache[ActsFor, None] = BriefCache(brokers.authenticate, seconds=_KNOWN_SECONDS)

    async def caller_of(self, call: Call) -> Caller:
        """Identify and authenticate the caller of a call, and count it as connected. Raises CodedError, ClientError."""
        caller = caller_of(call)
        if self._allowed_times is None:
            self._clients.on_call(caller.client_id)
            return caller  # noqa: ASYNC910 - without accounts, no broker is asked
        address = call.peer.rpartition(":")[0].strip("[]")
        user = user_of(call.metadata, address, self._wall_clock_ms(), self._allowed_times)
        await self._accounts.get(user)
        # Users have no slash in their names, so a client of another user never is the same one.
        client_id = f"{user.user}/{caller.client_id}"
        self._clients.on_call(client_id)
        return replace(caller, client_id=client_id, extra=user.fields())
