"""The connected clients: their settings, and the streams over which the proxy can ask them."""

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
    """The stream to one client; commands are sent one after the other.

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
        self._questions: dict[str, _Question] = {}
        self._numbers = itertools.count(1)
        self._call = call
        self._lock = trio.Lock()
        self._cut = False

    async def send(self, command: pb.TelemetryCommand) -> None:
        """Send a command, and wait until there is room for it. Cancelled, the stream can only be ended.

        Raises BrokenCall: the client is gone, or has not read for too long, or an earlier command was cut off.
        """
        async with self._lock:
            if self._cut:
                raise BrokenCall("the stream ends: a command on it was cut off")
            self._cut = True
            await self._call.send(command.SerializeToString())
            self._cut = False

    async def ask(self, command: Callable[[str], pb.TelemetryCommand], seconds: float) -> pb.TelemetryCommand | None:
        """Ask the client: `command` makes the question with this nonce. None without an answer in time.

        Raises BrokenCall, TooManyQuestions.
        """
        if len(self._questions) >= QUESTIONS_MAX:
            raise TooManyQuestions(f"{QUESTIONS_MAX} questions wait for an answer of this client")
        nonce = str(next(self._numbers))
        question = self._questions[nonce] = _Question()
        try:
            with trio.move_on_after(seconds):
                await self.send(command(nonce))
                await question.answer_event.wait()
        finally:
            del self._questions[nonce]
        return question.answer

    def on_response(self, nonce: str, response: pb.TelemetryCommand) -> None:
        """Hand a client's answer to the task that asked; ignored if that no longer waits."""
        question = self._questions.get(nonce)
        if question is not None:
            question.answer = response
            question.answer_event.set()


class TooManyQuestions(Exception):
    """The client has not answered earlier questions."""


class _Question:
    def __init__(self) -> None:
        self.answer_event = trio.Event()
        self.answer: pb.TelemetryCommand | None = None


class Clients:
    """Tracks the clients that have called lately, and their streams."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._streams: dict[str, list[TelemetryStream]] = {}
        self._heard_at: dict[str, float] = {}
        self._of_topic: dict[str, dict[TelemetryStream, None]] = {}

    def on_call(self, client_id: str) -> None:
        """Note that a client has called: it is connected from now on."""
        self._heard_at.pop(client_id, None)
        self._heard_at[client_id] = trio.current_time()
        while len(self._heard_at) > CLIENTS_MAX:
            del self._heard_at[next(iter(self._heard_at))]

    def is_here(self, client_id: str) -> bool:
        """Return whether a client has a stream, or has called lately."""
        if client_id in self._streams:
            return True
        heard_at = self._heard_at.get(client_id)
        return heard_at is not None and trio.current_time() - heard_at < SILENT_SECONDS_MAX

    def settings(self, client_id: str) -> pb.Settings | None:
        """Return the settings that a client got; None if it has no stream, or has not sent any."""
        streams = self._streams.get(client_id)
        return streams[-1].settings if streams else None

    def streams(self, client_id: str) -> list[TelemetryStream]:
        """Return the open streams of a client; a stream that the client has given up may not have ended yet."""
        return list(self._streams.get(client_id, ()))

    @property
    def stream_count(self) -> int:
        """The open telemetry streams."""
        return sum(map(len, self._streams.values()))

    def add_stream(self, stream: TelemetryStream) -> None:
        """Add a stream that begins."""
        self._streams.setdefault(stream.client_id, []).append(stream)

    def remove_stream(self, stream: TelemetryStream) -> None:
        """Forget a stream that has ended."""
        streams = self._streams[stream.client_id]
        streams.remove(stream)
        if not streams:
            del self._streams[stream.client_id]
        self.produces(stream, frozenset())

    def on_leave(self, client_id: str) -> None:
        """Forget a client that has said that it leaves."""
        self._heard_at.pop(client_id, None)

    # Members of consumer groups.

    def members(self) -> list[ClientBehindProxy]:
        """The members of consumer groups, at most `MEMBERS_MAX` with `MEMBERS_BYTES_MAX`; further ones are left out.
        The newest stream of a client names its member.
        """
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
        """Return the stream of a member of a group; None if there is none."""
        for stream in reversed(self._streams.get(client_id, ())):
            if stream.member is not None and stream.member.group == group:
                return stream
        return None

    # Producers of transactions.

    def produces(self, stream: TelemetryStream, topics: frozenset[str]) -> bool:
        """Note the topics to which the client of a stream sends transactional messages. Returns whether one is new."""
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
        """Any client that sends transactional messages to a topic."""
        streams = self._of_topic.get(topic)
        return self._rng.choice(list(streams)) if streams else None
