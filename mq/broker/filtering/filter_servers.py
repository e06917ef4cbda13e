"""Registers filter servers (request code 301, REGISTER_FILTER_SERVER), and lists them in this broker's route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mq.broker.base.periodic_task import Periodic
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.protocol.broker_ids import LEADER_ID, broker_id_of
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.filters import FilterServerRegistered, RegisterFilterServer
from raftlog import parse_address

FILTER_SERVERS_MAX: Final = 16
"""The number that name servers accept from one broker."""
SILENT_SECONDS: Final = 30.0
"""A filter server that was silent for this long is no longer named."""
_LOOK_SECONDS: Final = 5.0


class FilterServers(Service):
    """Tracks the filter servers that have registered at this replica. Each replica tracks its own."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._appender = context.appender
        self._clock = context.clock
        self._log = context.log
        self._on_change = context.environment.on_registration_changed
        self._heard_at: dict[str, float] = {}

    def addresses(self) -> list[str]:
        """Return the addresses at which consumers reach the filter servers, for the route."""
        return sorted(self._heard_at)

    def routes(self) -> Iterator[Route]:
        yield Route(RegisterFilterServer, self.handle)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_LOOK_SECONDS, self.expire)

    def handle(self, call: Call[RegisterFilterServer]) -> bytes:
        """Request code 301: register a filter server by its address. Raises RequestRefused."""
        address = call.request.ext.address
        try:
            parse_address(address)
        except ValueError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the filter server's address: {error}") from error
        is_new = address not in self._heard_at
        if is_new and len(self._heard_at) >= FILTER_SERVERS_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"this broker has its maximum of {FILTER_SERVERS_MAX} filter servers"
            )
        self._heard_at[address] = self._clock()
        if is_new:
            self._log.info("filter_server_registered", address=address)
            self._on_change(None)
        leads = self._appender.is_open
        broker_id = LEADER_ID if leads else broker_id_of(self._settings.node_id)
        return call.response(ext=FilterServerRegistered(broker_name=self._settings.group, broker_id=broker_id).fields())

    def expire(self) -> None:
        """Remove filter servers that have been silent for too long. A timer calls this."""
        silent_since = self._clock() - SILENT_SECONDS
        silent = [address for address, heard_at in self._heard_at.items() if heard_at < silent_since]
        for address in silent:
            del self._heard_at[address]
            self._log.warning("filter_server_gone", address=address, seconds=SILENT_SECONDS)
        if silent:
            self._on_change(None)

    def check_invariants(self) -> None:
        now, count = self._clock(), len(self._heard_at)
        assert count <= FILTER_SERVERS_MAX, f"{count} filter servers, {FILTER_SERVERS_MAX} are allowed"
        assert all(at <= now for at in self._heard_at.values()), f"{self._heard_at}: heard later than {now}"

    def counters(self) -> dict[str, int]:
        """Return the number of registered filter servers, by name."""
        return {"filter_servers": len(self._heard_at)}
