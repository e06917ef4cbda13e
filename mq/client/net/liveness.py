"""Detects connections that only look open, because the server was cut off without closing them.

Theory of operation. Silence alone proves little: a broker may be silent because its disk stalls, and closing its
connection would turn certain outcomes into unknown ones. So silence only triggers a question to the name servers; the
connection is closed if another replica leads the group now. One task checks all connections a few times a second, at no
cost for requests. A pull may be held for long, so silence means nothing then; a connection with only held pulls is
probed now and then by a request that is not held.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio

from mq.client.errors import ClientError
from mq.client.logs import log
from mq.client.net.connection import Connection


class SilenceWatch:
    """Closes a silent connection to a leader if another replica has become the leader.

    Silent means: nothing received for `silence_seconds` although an answer is due. `leader_for` asks the name servers
    for the current leader of the group of the broker at an address, None if unknown; one query at a time, and one per
    silent connection every `check_seconds`. `probe` sends a request that is answered at once; it is called for
    connections with held pulls that received nothing for `probe_seconds`.
    """

    def __init__(
        self,
        connections: Callable[[], Iterable[Connection]],
        *,
        leader_for: Callable[[str], Awaitable[str | None]],
        probe: Callable[[Connection], None],
        silence_seconds: float,
        probe_seconds: float,
        check_seconds: float,
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        self._connections = connections
        self._leader_for = leader_for
        self._probe = probe
        self._silence_seconds = silence_seconds
        self._probe_seconds = probe_seconds
        self._check_seconds = check_seconds
        self._clock = clock
        self._owing_since: dict[Connection, float] = {}

    async def run(self) -> None:
        """Check all connections periodically, until cancelled."""
        while True:
            await anyio.sleep(self._check_seconds)
            await self.check_all()

    async def check_all(self) -> None:
        """Check all connections once."""
        now = self._clock()
        connections = [each for each in self._connections() if each.failure is None]
        # Measured between two checks, since requests do not record times.
        self._owing_since = {each: self._owing_since.get(each, now) for each in connections if each.owes_response}
        for connection in connections:
            if connection not in self._owing_since:
                if connection.held_count and now - connection.heard_at >= self._probe_seconds:
                    self._probe(connection)
            elif self._silent_seconds(connection, now) >= self._silence_seconds:
                await self._inquire(connection)

    def _silent_seconds(self, connection: Connection, now: float) -> float:
        return now - max(connection.heard_at, self._owing_since[connection])

    async def _inquire(self, connection: Connection) -> None:
        try:
            leader = await self._leader_for(connection.address)
        except ClientError as error:
            log.debug("leader_unknown", address=connection.address, reason=str(error))
            return
        if leader is None or leader == connection.address or connection.failure is not None:
            return
        # It may have answered in the meantime.
        silent_seconds = self._silent_seconds(connection, self._clock())
        if silent_seconds >= self._silence_seconds and connection.owes_response:
            connection.close(f"no data for {silent_seconds:.1f} s, and {leader} leads now")
