"""The connected clients: what they have told of themselves, and the streams over which the proxy can ask them."""

from __future__ import annotations

import random
from typing import Final

import trio

from mq.proxy.callers import Call
from mq.proxy.grpc.status import BrokenCall
from mq.proxy.wire import messaging_pb2 as pb

SILENT_SECONDS_MAX: Final = 60.0
"""A client without a telemetry stream that has been silent for so long is gone; it sends heartbeats every 10 s."""
CLIENTS_MAX: Final = 100_000


class TelemetryStream:
    """The stream to one client; commands are sent one after the other."""

    def __init__(self, call: Call, client_id: str) -> None:
        self.client_id = client_id
        self.settings: pb.Settings | None = None
        self.transaction_topics: frozenset[str] = frozenset()
        self._call = call
        self._lock = trio.Lock()
        self._cut = False

    async def send(self, command: pb.TelemetryCommand) -> None:
        """Waits until there is room for it. Cancelled, the stream can only be ended.

        Raises BrokenCall: the client is gone, or has not read for too long, or an earlier command was cut off.
        """
        async with self._lock:
            if self._cut:
                raise BrokenCall("the stream ends: a command on it was cut off")
            self._cut = True
            await self._call.send(command.SerializeToString())
            self._cut = False


class Clients:
    """All clients that have called lately."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._streams: dict[str, list[TelemetryStream]] = {}
        self._heard_at: dict[str, float] = {}
        self._of_topic: dict[str, dict[TelemetryStream, None]] = {}

    def heard(self, client_id: str) -> None:
        """A client has called: it is here from now on."""
        self._heard_at.pop(client_id, None)
        self._heard_at[client_id] = trio.current_time()
        while len(self._heard_at) > CLIENTS_MAX:
            del self._heard_at[next(iter(self._heard_at))]

    def is_here(self, client_id: str) -> bool:
        """Whether a client has a stream, or has called lately."""
        if client_id in self._streams:
            return True
        heard_at = self._heard_at.get(client_id)
        return heard_at is not None and trio.current_time() - heard_at < SILENT_SECONDS_MAX

    def settings(self, client_id: str) -> pb.Settings | None:
        """What a client has got as its settings; None if it has no stream, or has not sent any."""
        streams = self._streams.get(client_id)
        return streams[-1].settings if streams else None

    def streams(self, client_id: str) -> list[TelemetryStream]:
        """The open streams of a client; a stream that the client has given up may not have ended yet."""
        return list(self._streams.get(client_id, ()))

    @property
    def stream_count(self) -> int:
        """The open telemetry streams."""
        return sum(map(len, self._streams.values()))

    def opened(self, stream: TelemetryStream) -> None:
        """A stream begins."""
        self._streams.setdefault(stream.client_id, []).append(stream)

    def closed(self, stream: TelemetryStream) -> None:
        """A stream has ended."""
        streams = self._streams[stream.client_id]
        streams.remove(stream)
        if not streams:
            del self._streams[stream.client_id]
        self.produces(stream, frozenset())

    def gone(self, client_id: str) -> None:
        """A client has said that it leaves."""
        self._heard_at.pop(client_id, None)

    # Producers of transactions.

    def produces(self, stream: TelemetryStream, topics: frozenset[str]) -> bool:
        """The client of a stream sends transactional messages to these topics. Returns whether a topic is new."""
        for topic in stream.transaction_topics - topics:
            del self._of_topic[topic][stream]
            if not self._of_topic[topic]:
                del self._of_topic[topic]
        is_new = not topics <= self._of_topic.keys()
        for topic in topics - stream.transaction_topics:
            self._of_topic.setdefault(topic, {})[stream] = None
        stream.transaction_topics = topics
        return is_new

    def transaction_topics(self) -> set[str]:
        """The topics to which clients send transactional messages."""
        return set(self._of_topic)

    def producer_of(self, topic: str) -> TelemetryStream | None:
        """Any client that sends transactional messages to a topic."""
        streams = self._of_topic.get(topic)
        return self._rng.choice(list(streams)) if streams else None
