"""The pull loop of one assigned queue: long polls, flow control, and the handling of all answers to pulls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from mq.client.consume.filter_uploads import FilterUploads
from mq.client.consume.filter_watch import FilterWatch
from mq.client.consume.local_offsets import LocalOffsets
from mq.client.consume.offsets import GroupOffsets
from mq.client.consume.process_queue import FlowLimits, ProcessQueue
from mq.client.errors import BrokerError, ClientError, CodecNotInstalled, NoRoute, UnreadableAnswer
from mq.client.events import ClientEvent
from mq.client.logs import log
from mq.client.long_wait import LongWait
from mq.client.message import ReceivedMessage
from mq.client.net.client_core import ClientCore
from mq.client.net.connection import Connection
from mq.client.net.replies import fields_of, read_body
from mq.client.net.routes import LEADER_ID, TopicRoute
from mq.filter.programs import CLASS_FILTER, filtered_expression
from mq.filter.subscription import FilterProgram, Subscription
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.messages.compression import COMPRESSED, CodecMissing, DecompressionError, inflate
from mq.protocol.messages.records import StoredMessage, decode_records
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pull import PULL_ANSWERS, PullExt, PullReply

COMMIT_OFFSET = 1
SUSPEND = 2
SUBSCRIPTION = 4


BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 0.5
# If an empty long poll is answered sooner than this, the broker does not hold it; pulling again at once would be a busy
# loop.
EMPTY_ANSWER_SECONDS_MIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """The limits of pulls: messages per pull (`batch_max`), unfinished messages (`limits`), and the seconds for which a
    broker may hold a pull (`hold_seconds`).

    The answer must arrive at most `answer_seconds` after that. Bodies may inflate to `inflated_bytes_max`, and the
    bodies of one answer to twice that: the rest is pulled again.
    """

    batch_max: int = 256
    hold_seconds: float = 15.0
    answer_seconds: float = 5.0
    inflated_bytes_max: int = 64 * 1024 * 1024
    limits: FlowLimits = field(default_factory=FlowLimits)


def check_pull_settings(settings: object) -> None:
    """Raise TypeError unless it is a PullSettings or None."""
    if settings is not None and not isinstance(settings, PullSettings):
        raise TypeError(f"pull is a PullSettings, not {settings!r}")


class Puller:
    """Keeps one `ProcessQueue` filled with messages while `run` runs.

    Only this class keeps the position: an answer moves it, and after any failure the same offset is pulled again. So
    nothing is skipped, and nothing is repeated except by `on_offset_moved`, which is called with the broker's offset
    when the broker has refused ours twice.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        subscription: Subscription,
        process_queue: ProcessQueue,
        offsets: GroupOffsets | LocalOffsets,
        settings: PullSettings,
        *,
        sub_version: int,
        watch: FilterWatch,
        uploads: FilterUploads,
        on_messages: Callable[[ProcessQueue], None],
        on_offset_moved: Callable[[ProcessQueue, int], None],
    ) -> None:
        self.process_queue = process_queue
        self._core = core
        self._group = group
        self._subscription = subscription
        self._offsets = offsets
        self._settings = settings
        self._sub_version = sub_version
        self._watch = watch
        self._uploads = uploads
        self._on_messages = on_messages
        self._on_offset_moved = on_offset_moved
        self._queue = process_queue.queue
        self._broker_id = LEADER_ID
        self._pull_address: str | None = None
        self._pull_scope = anyio.CancelScope()
        self._scope = anyio.CancelScope()
        self._progress = anyio.Event()
        self._backoff_seconds = BACKOFF_SECONDS_MIN
        self._refused_offset: int | None = None
        self._damaged_addresses: set[str] = set()
        self._limits = core.settings.limits
        self._wait = LongWait("cannot_pull", self._limits)
        self._is_told_full = False
        self._is_codec_told = False
        self._filter_server_number = 0

    @property
    def trouble(self) -> str | None:
        """The reason that the last pull failed; None if it did not fail."""
        return None if self._wait.reason is None else f"{self._queue}: {self._wait.reason}"

    def stop(self) -> None:
        """End `run` and drop the queue, which then delivers nothing more."""
        self.process_queue.drop()
        self._scope.cancel()

    def on_progress(self) -> None:
        """Continue to pull, because messages were finished or the queue was resumed."""
        self._progress.set()

    def on_route(self, route: TopicRoute) -> None:
        """Cancel the pull if it waits at a broker that no longer leads: that broker might hold it for 20 s more."""
        address = self._pull_address
        if self._subscription.program is not None:
            if address is not None and address not in route.filter_servers.get(self._queue.broker_name, ()):
                self._pull_scope.cancel()
        elif address is not None and address not in route.brokers.get(self._queue.broker_name, {}).values():
            self._pull_scope.cancel()
        elif address is not None and self._broker_id == LEADER_ID:
            leader = route.leader_address(self._queue.broker_name)
            if leader is not None and leader != address:
                self._pull_scope.cancel()

    async def run(self) -> None:
        """Pull until stopped or cancelled."""
        with self._scope:
            while not self.process_queue.dropped:
                if self.process_queue.paused or self.process_queue.is_full(self._settings.limits):
                    await self._wait_for_room()
                    continue
                self._is_told_full = False
                try:
                    await self._pull_once()
                except ClientError as error:
                    log.info("pull_failed", queue=self._queue, offset=self.process_queue.next_offset, reason=str(error))
                    if self._wait.warn_if_long(error, group=self._group, queue=str(self._queue)):
                        self._core.emit(ClientEvent("stuck", str(self._queue), str(error)))
                    await self._back_off()

    async def _wait_for_room(self) -> None:
        """Wait until messages of the queue were finished, or it was resumed. Logs a long wait."""
        queue = self.process_queue
        self._progress = progress = anyio.Event()
        with anyio.move_on_after(self._limits.warn_after_seconds):
            await progress.wait()
            return
        if not (queue.paused or self._is_told_full):
            self._is_told_full = True
            log.warning(
                "pulling_paused",
                group=self._group,
                queue=str(self._queue),
                unfinished=queue.cached_count,
                offset=queue.commit_offset,
                reason=queue.full_reason(self._settings.limits),
                seconds=round(self._limits.warn_after_seconds),
            )
        await progress.wait()

    async def _back_off(self) -> None:
        self._broker_id = LEADER_ID
        self._filter_server_number += 1
        await anyio.sleep(self._backoff_seconds)
        self._backoff_seconds = min(self._backoff_seconds * 2, BACKOFF_SECONDS_MAX)
        try:
            await self._core.route(self._queue.topic, refresh=True)
        except ClientError as error:
            log.info("route_unavailable", topic=self._queue.topic, reason=str(error))

    async def _pull_once(self) -> None:
        route = await self._core.route(self._queue.topic)
        if self._subscription.program is not None:
            await self._pull_filtered(route, self._subscription.program)
            return
        address = route.read_address(self._queue.broker_name, self._broker_id)
        if address in self._damaged_addresses:
            # A disk may have returned wrong bytes; another replica has its own copy.
            others = route.brokers.get(self._queue.broker_name, {}).values()
            address = next((other for other in others if other not in self._damaged_addresses), None)
            if address is None:
                self._damaged_addresses.clear()
                address = route.read_address(self._queue.broker_name, LEADER_ID)
        if address is None:
            raise NoRoute(self._queue.topic, f"no replica of {self._queue.broker_name} is known")
        connection = await self._core.connection(address)
        started_at = anyio.current_time()
        self._pull_address = address
        with anyio.CancelScope() as self._pull_scope:
            response, body = await self._request(
                connection, from_leader=address == route.leader_address(self._queue.broker_name)
            )
            self._pull_address = None
            try:
                await self._react(response, body, seconds=anyio.current_time() - started_at)
            except UnreadableAnswer as error:
                self._damaged_addresses.add(address)
                log.warning("replica_damaged", address=address, queue=self._queue, reason=str(error))
                raise
        self._pull_address = None

    async def _pull_filtered(self, route: TopicRoute, program: FilterProgram) -> None:
        """Pull from a filter server of the queue's broker group. Uploads the program if the server lacks it."""
        name = self._queue.broker_name
        servers = route.filter_servers.get(name, ())
        if not servers:
            reason = f"no filter server runs beside broker group {name}: start one with `raftmq filter-server`"
            raise NoRoute(self._queue.topic, reason)
        address = servers[self._filter_server_number % len(servers)]
        connection = await self._core.connection(address)
        started_at = anyio.current_time()
        self._pull_address = address
        with anyio.CancelScope() as self._pull_scope:
            response, body = await self._request(connection, from_leader=False)
            if response.code in (ResponseCode.FILTER_DATA_NOT_EXIST, ResponseCode.FILTER_DATA_NOT_LATEST):
                await self._uploads.upload(connection, self._queue.topic, program, started_at)
                await anyio.sleep(BACKOFF_SECONDS_MIN)  # if two programs drive each other out, it is not a busy loop
            else:
                await self._react(response, body, seconds=anyio.current_time() - started_at)
        self._pull_address = None

    async def _request(self, connection: Connection, *, from_leader: bool) -> tuple[Response, memoryview]:
        commit_offset = self.process_queue.commit_offset
        # Only leaders store offsets; and zero means the same as no offset.
        commits = from_leader and commit_offset > 0 and self._offsets.commits_with_pulls
        settings, program = self._settings, self._subscription.program
        return await connection.request(
            RequestCode.PULL_MESSAGE,
            PullExt(
                consumer_group=self._group,
                topic=self._queue.topic,
                queue_id=self._queue.queue_id,
                queue_offset=QueueOffset(self.process_queue.next_offset),
                max_messages=min(settings.batch_max, settings.limits.count_max),
                sys_flag=SUSPEND
                | SUBSCRIPTION
                | (COMMIT_OFFSET if commits else 0)
                | (CLASS_FILTER if program is not None else 0),
                commit_offset=QueueOffset(commit_offset if commits else 0),
                # The former owner of the queue may have committed further after this client requested the offset.
                forward_only=self._offsets.commits_with_pulls,
                suspend_timeout_ms=int(settings.hold_seconds * 1000),
                subscription=(
                    self._subscription.expression
                    if program is None
                    else filtered_expression(program.name, self._subscription.expression)
                ),
                sub_version=self._sub_version,
                expression_type=self._subscription.expression_type,
            ).fields(),
            timeout=settings.hold_seconds + settings.answer_seconds,
            may_be_held=True,
        )

    async def _react(self, response: Response, body: memoryview, *, seconds: float) -> None:
        """Apply an answer completely or not at all. Raises UnreadableAnswer, BrokerError."""
        process_queue = self.process_queue
        if response.code not in PULL_ANSWERS:
            raise BrokerError(response.code, response.remark, self._pull_address or "broker")
        reply = fields_of(PullReply, response)
        begin, count = process_queue.next_offset, 0
        match response.code:
            case ResponseCode.SUCCESS:
                messages, next_offset = self._receive(body, reply.next_begin_offset)
                count = len(messages)
                process_queue.put(messages, next_offset)
                self._damaged_addresses.clear()
                self._on_messages(process_queue)
            case ResponseCode.PULL_NOT_FOUND | ResponseCode.PULL_RETRY_IMMEDIATELY:
                process_queue.put((), max(reply.next_begin_offset, process_queue.next_offset))
                if response.code == ResponseCode.PULL_NOT_FOUND and seconds < EMPTY_ANSWER_SECONDS_MIN:
                    await anyio.sleep(BACKOFF_SECONDS_MIN)
            case _:
                await self._offset_refused(reply.next_begin_offset)
                return
        self._watch.count_pull(self._subscription, count, process_queue.next_offset - begin - count)
        self._refused_offset = None
        self._wait.end()
        self._backoff_seconds = BACKOFF_SECONDS_MIN
        self._broker_id = reply.suggested_broker_id

    async def _offset_refused(self, offset: int) -> None:
        """Move only when refused twice: a recovering broker may not know its queue yet."""
        ours = self.process_queue.next_offset
        if self._refused_offset != ours or offset == ours:
            self._refused_offset = ours
            await self._back_off()
            return
        log.warning("pull_offset_moved", queue=self._queue, offset=ours, next_offset=offset)
        self._on_offset_moved(self.process_queue, offset)

    def _receive(self, body: memoryview, next_offset: int) -> tuple[list[ReceivedMessage], int]:
        """Return the matching messages of an answer, and the next offset.

        Brokers filter by hash codes, so tags are compared again here. Raises UnreadableAnswer for messages of another
        queue, and CodecNotInstalled.
        """
        first = self.process_queue.next_offset
        if next_offset < first:
            raise UnreadableAnswer(
                f"the answer to a pull at {first} names the next offset {next_offset}, which is lower"
            )
        messages: list[ReceivedMessage] = []
        nbytes = 0
        # Runs for every message: what stays the same is looked up once.
        queue, subscription, nbytes_max = self._queue, self._subscription, self._settings.inflated_bytes_max
        topic, queue_id = queue.topic, queue.queue_id
        takes_all = subscription.all_tags
        for record in read_body(decode_records, body):
            offset = record.queue_offset
            if record.queue_id != queue_id or record.topic != topic:
                raise UnreadableAnswer(
                    f"the answer has a message of another queue, {record.queue_id} of {record.topic}"
                )
            if not first <= offset < next_offset:
                raise UnreadableAnswer(
                    f"the answer to a pull at {first} has offset {offset}; expected: {first} to {next_offset - 1}"
                )
            first = offset + 1
            if takes_all or subscription.matches_tag(record.properties.get("TAGS")):
                if nbytes > nbytes_max:
                    return messages, offset
                content = record.body
                if record.sys_flag & COMPRESSED:
                    try:
                        content = self._body(record)
                    except CodecNotInstalled:
                        if not messages:
                            raise
                        return messages, offset
                nbytes += len(content)
                messages.append(ReceivedMessage(record, queue, content))
        return messages, next_offset

    def _body(self, record: StoredMessage) -> bytes:
        try:
            return inflate(record.sys_flag, record.body, self._settings.inflated_bytes_max)
        except DecompressionError as error:
            # Pulling again would return the same bytes and block the queue for ever; skipping the message would lose it
            # silently. So the application gets the body as stored.
            log.error("body_not_inflated", queue=self._queue, offset=record.queue_offset, reason=str(error))
            return record.body
        except CodecMissing as error:
            # A fault of this installation, not of the message: another member of the group may read it.
            if not self._is_codec_told:
                self._is_codec_told = True
                log.error("body_not_inflated", queue=self._queue, offset=record.queue_offset, reason=str(error))
            raise CodecNotInstalled(error) from error
