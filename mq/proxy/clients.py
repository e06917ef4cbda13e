"""The connected clients: their settings, and the streams over which the proxy sends them commands."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Final

import trio

from mq.protocol.requests.clients import ClientBehindProxy
from mq.proxy.callers import Call
from mq.proxy.grpc.status import BrokenCall
from mq.proxy.wire import messaging_pb2 as pb

SILENT_SECONDS_MAX: Final = 60.0
"""A client without a telemetry stream is forgotten after this silence; it sends heartbeats every 10 s."""
CLIENTS_MAX: Final = 100_000
MEMBERS_MAX: Final = 2_000
"""Members of consumer groups that a proxy names in its heartbeats, some 250 bytes each."""
MEMBERS_BYTES_MAX: Final = 1_500_000
"""Maximum size of all members in a heartbeat: brokers refuse one above 2 MiB, including transactional producers."""

QUESTIONS_MAX: Final = 16
"""Questions of operators to one client that wait for its answer."""


class TelemetryStream:
    """The stream to one client. It sends one command after the other.

    Attributes:
        opened_ms: when it began, in milliseconds since the epoch.
        member: its client as a member of a consumer group, once it is known to be one.
    """

    def __init__(self, call: Call, client_id: str, opened_ms: int) -> None:
        self.client_id = client_id
        self.opened_ms = opened_ms
        self.settings: pb.Settings | None = None
        self.transaction_topics: frozenset[str] = frozenset()
        self.member: ClientBehindProxy | None = None
        self._questions: dict[str, _TelemetryQuestion] = {}
        self._numbers = itertools.count(1)
        self._call = call
        self._lock = trio.Lock()
        self._cut = False

    async def send(self, command: pb.TelemetryCommand) -> None:
        """Send a command. Waits until there is room for it. If this is cancelled, the stream must be ended.

        Raises BrokenCall: the client is gone, or has not read for too long, or an earlier command was cut off.
        """
        async with self._lock:
            if self._cut:
                raise BrokenCall("the stream ends: a command on it was cut off")
            self._cut = True
            await self._call.send(command.SerializeToString())
            self._cut = False

    async def ask(self, command: Callable[[str], pb.TelemetryCommand], seconds: float) -> pb.TelemetryCommand | None:
        """Send the question that `command` makes for a nonce, and wait for the answer; None if none comes in time.

        Raises BrokenCall, TooManyQuestions.
        """
        if len(self._questions) >= QUESTIONS_MAX:
            raise TooManyQuestions(f"{QUESTIONS_MAX} questions wait for an answer of this client")
        nonce = str(next(self._numbers))
        question = self._questions[nonce] = _TelemetryQuestion()
        try:
            with trio.move_on_after(seconds):
                await self.send(command(nonce))
                await question.answer_event.wait()
        finally:
            del self._questions[nonce]
        return question.response

    def on_response(self, nonce: str, response: pb.TelemetryCommand) -> None:
        """Pass a client's answer to the task that asked. Ignores it if no task waits for it."""
        question = self._questions.get(nonce)
        if question is not None:
            question.response = response
            question.answer_event.set()


class TooManyQuestions(Exception):
    """Too many questions to the client have no answer yet."""


class _TelemetryQuestion:
    def __init__(self) -> None:
        self.answer_event = trio.Event()
        self.response: pb.TelemetryCommand | None = None


class Clients:
    """The clients that are connected or called lately, and their streams."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._streams: dict[str, list[TelemetryStream]] = {}
        self._heard_at: dict[str, float] = {}
        self._of_topic: dict[str, dict[TelemetryStream, None]] = {}

    def on_call(self, client_id: str) -> None:
        """Record a call of a client, which counts as connected from now on."""
        self._heard_at.pop(client_id, None)
        self._heard_at[client_id] = trio.current_time()
        while len(self._heard_at) > CLIENTS_MAX:
            del self._heard_at[next(iter(self._heard_at))]

    def is_here(self, client_id: str) -> bool:
        """Return whether a client has a stream, or called lately."""
        if client_id in self._streams:
            return True
        heard_at = self._heard_at.get(client_id)
        return heard_at is not None and trio.current_time() - heard_at < SILENT_SECONDS_MAX

    def settings(self, client_id: str) -> pb.Settings | None:
        """Return the settings of a client; None if it has no stream or sent no settings."""
        streams = self._streams.get(client_id)
        return streams[-1].settings if streams else None

    def streams(self, client_id: str) -> list[TelemetryStream]:
        """List the open streams of a client. A stream that the client dropped may still be among them."""
        return list(self._streams.get(client_id, ()))

    @property
    def stream_count(self) -> int:
        """The number of open telemetry streams."""
        return sum(map(len, self._streams.values()))

    def add_stream(self, stream: TelemetryStream) -> None:
        """Add a new stream of a client."""
        self._streams.setdefault(stream.client_id, []).append(stream)

    def remove_stream(self, stream: TelemetryStream) -> None:
        """Remove a stream that has ended."""
        streams = self._streams[stream.client_id]
        streams.remove(stream)
        if not streams:
            del self._streams[stream.client_id]
        self.produces(stream, frozenset())

    def on_leave(self, client_id: str) -> None:
        """Remove a client that has announced that it leaves."""
        self._heard_at.pop(client_id, None)

    # Members of consumer groups.

    def members(self) -> list[ClientBehindProxy]:
        """List the member of each client's newest stream, up to `MEMBERS_MAX` and `MEMBERS_BYTES_MAX`."""
        clients: list[ClientBehindProxy] = []
        room = MEMBERS_BYTES_MAX
        for streams in self._streams.values():
            member = streams[-1].member
            if member is not None and (nbytes := len(member.encode())) <= room:
                clients.append(member)
                room -= nbytes
                if len(clients) == MEMBERS_MAX:
                    break
        return clients

    def member(self, group: str, client_id: str) -> TelemetryStream | None:
        """Return the stream of a group's member; None if it has none."""
        for stream in reversed(self._streams.get(client_id, ())):
            if stream.member is not None and stream.member.group == group:
                return stream
        return None

    # Producers of transactions.

    def produces(self, stream: TelemetryStream, topics: frozenset[str]) -> bool:
        """Record the topics to which a stream's client sends transactional messages. Returns whether any is new."""
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
        """Return the topics to which clients send transactional messages."""
        return set(self._of_topic)

    def producer_of(self, topic: str) -> TelemetryStream | None:
        """Return the stream of any client that sends transactional messages to a topic; None if there is none."""
        streams = self._of_topic.get(topic)
        return self._rng.choice(list(streams)) if streams else None
