"""Pulls through a filter: reads from the broker for a consumer, and answers with what its filter lets through.

A pull is answered as soon as a message is let through and no more are at hand. If none is, it is answered a second
after messages were looked at, with the offset behind them, or at its deadline. So a filter that lets nothing through
moves on like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
import trio

from mq.client.errors import BrokerError, ClientError
from mq.client.net.replies import fields_of, read_body
from mq.filter.programs import ProgramRefused, parse_program_name
from mq.filter.wasm import Message
from mq.filter_server.broker_link import BrokerLink
from mq.filter_server.figures import Figures
from mq.filter_server.programs import Program, Programs
from mq.filter_server.sandbox import Verdicts
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.compression import COMPRESSED, CodecMissing, DecompressionError, inflate
from mq.protocol.messages.records import scan_bodies
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pull import PullExt, PullReply

SUSPEND: Final = 2
SUBSCRIPTION: Final = 4
HOLD_SECONDS_MAX: Final = 30.0
EXAMINED_MAX: Final = 512
"""Messages of one pull at the broker."""
ANSWER_BYTES_MAX: Final = 1024 * 1024
_GATHER_SECONDS: Final = 0.05
"""For so long an answer that has messages already waits for more that are at hand."""
_PROGRESS_SECONDS: Final = 1.0
"""So long after its begin a pull is answered whose messages were all filtered out: the offset of the group follows."""
_PAUSE_SECONDS: Final = 0.05
_RUN_SECONDS: Final = 0.25
"""Of one run of a filter; then another filter gets the thread."""
_LOG_SECONDS: Final = 10.0

Log = structlog.stdlib.BoundLogger


class Answer(NamedTuple):
    """The answer to a pull; `body` has stored records."""

    code: int
    next_offset: int
    low: int
    high: int
    remark: str | None
    body: bytes


class _Record(NamedTuple):
    begin: int
    end: int
    queue_offset: int


class _Examined(NamedTuple):
    """What became of some messages: those let through, the offset behind them, and how many were looked at."""

    passed: list[memoryview]
    next_offset: int
    is_cut: bool
    """Not all of them were looked at, or there was no room for more."""


class FilteredPulls:
    """Serves pulls; `threads` limits how many filters run at the same time."""

    def __init__(
        self,
        link: BrokerLink,
        programs: Programs,
        figures: Figures,
        *,
        threads: int,
        body_bytes_max: int,
        clock: Callable[[], float],
        log: Log,
    ) -> None:
        self._link = link
        self._programs = programs
        self._figures = figures
        self._threads = trio.CapacityLimiter(threads)
        self._body_bytes_max = body_bytes_max
        self._clock = clock
        self._log = log
        self._told: dict[tuple[str, str], float] = {}

    async def pull(self, ext: PullExt) -> Answer:
        """The answer to a pull. Raises ClientError, ProgramRefused; then nothing was passed on."""
        name = parse_program_name(ext.subscription or "")
        program = await self._programs.of(ext.consumer_group, ext.topic, name)
        begun = self._clock()
        held = min(max(ext.suspend_timeout_ms, 0) / 1000, HOLD_SECONDS_MAX) if ext.sys_flag & SUSPEND else 0.0
        deadline, progressed = begun + held, begun + _PROGRESS_SECONDS
        offset = int(ext.queue_offset)
        passed: list[memoryview] = []
        nbytes, low, high = 0, 0, 0
        batch = wanted = min(max(ext.max_messages, 1), EXAMINED_MAX)
        while True:
            try:
                reply, body = await self._read(ext, offset, batch, 0.0 if passed else deadline)
            except ClientError:
                if offset > ext.queue_offset:
                    break  # what was looked at so far stays looked at; the next pull gets the error
                raise
            low, high = reply.low, reply.high
            if reply.code == ResponseCode.PULL_OFFSET_MOVED:
                if offset > ext.queue_offset:
                    break
                return Answer(reply.code, reply.next_offset, low, high, reply.remark, b"")
            if reply.code != ResponseCode.SUCCESS:
                offset = max(offset, reply.next_offset)
                if passed or self._clock() >= deadline:
                    break
                if offset > ext.queue_offset:
                    deadline = min(deadline, progressed)
                if reply.next_offset <= offset:  # a broker that holds no more pulls, or wants another replica asked
                    await trio.sleep(_PAUSE_SECONDS)
                continue
            if not await self._turn(program, ext.consumer_group, begun + max(held, _PROGRESS_SECONDS)):
                break
            found = await self._examine(
                program, ext, body, reply.next_offset, wanted - len(passed), ANSWER_BYTES_MAX - nbytes
            )
            assert found.next_offset >= offset, f"examined from {offset} to {found.next_offset}"
            offset = found.next_offset
            passed += found.passed
            nbytes += sum(map(len, found.passed))
            now = self._clock()
            if passed:
                is_full = len(passed) >= wanted or nbytes >= ANSWER_BYTES_MAX or found.is_cut
                if is_full or offset >= high or now >= begun + _GATHER_SECONDS:
                    break
            else:
                deadline = min(deadline, progressed)
                if now >= progressed:
                    break
            batch = min(2 * batch, EXAMINED_MAX)
        if passed:
            self._figures.answered(ext.consumer_group, nbytes)
            return Answer(ResponseCode.SUCCESS, offset, low, high, "FOUND", b"".join(passed))
        if offset > ext.queue_offset:
            return Answer(ResponseCode.PULL_RETRY_IMMEDIATELY, offset, low, high, "NO_MATCHED_MESSAGE", b"")
        return Answer(ResponseCode.PULL_NOT_FOUND, offset, low, high, "OFFSET_OVERFLOW_ONE", b"")

    async def _read(self, ext: PullExt, offset: int, batch: int, deadline: float) -> tuple[_Reply, memoryview]:
        wanted = PullExt(
            consumer_group=ext.consumer_group,
            topic=ext.topic,
            queue_id=ext.queue_id,
            queue_offset=QueueOffset(offset),
            max_messages=batch,
            sys_flag=SUBSCRIPTION | (SUSPEND if deadline > self._clock() else 0),
            commit_offset=QueueOffset(0),
            suspend_timeout_ms=0,
            sub_version=ext.sub_version,
            subscription="*",
            expression_type="TAG",
        )
        response, body = await self._link.pull(wanted, deadline)
        reply = fields_of(PullReply, response)
        code, remark = response.code, response.remark
        return _Reply(code, reply.next_begin_offset, reply.min_offset, reply.max_offset, remark), body

    async def _turn(self, program: Program, group: str, deadline: float) -> bool:
        """Take the program's turn, once its group may use a processor again; False if neither happens in time."""
        with trio.move_on_at(deadline):
            await program.turn.acquire()
            try:
                if (pause := program.budget.wait_seconds(self._clock())) > 0:
                    self._figures.throttled(group, pause)
                    await trio.sleep(pause)
            except trio.Cancelled:
                program.turn.release()
                raise
            return True
        return False

    async def _examine(
        self, program: Program, ext: PullExt, body: memoryview, next_offset: int, wanted: int, room: int
    ) -> _Examined:
        """Filter records, up to the one with which `wanted` are let through or `room` bytes are full. Ends the turn."""
        data = bytes(body)
        group = ext.consumer_group
        view = memoryview(data)
        try:
            records, verdicts = await trio.to_thread.run_sync(self._filter, program, data, ext, limiter=self._threads)
            program.budget.spend(verdicts.seconds, self._clock())
        finally:
            program.turn.release()
        skips = program.name.on_error == "skip"
        passed: list[memoryview] = []
        nbytes = count = 0
        for position, (record, passes) in enumerate(zip(records, verdicts.passes, strict=False)):
            if len(passed) == wanted or (passed and nbytes + record.end - record.begin > room):
                break
            count += 1
            if position in verdicts.failures:
                passes = not skips
                self._tell(ext, record.queue_offset, verdicts.failures[position], skips=skips)
            if passes:
                passed.append(view[record.begin : record.end])
                nbytes += record.end - record.begin
        failed = sum(position < count for position in verdicts.failures)
        self._figures.filtered(group, examined=count, passed=len(passed), failed=failed, seconds=verdicts.seconds)
        is_cut = count < len(records)
        return _Examined(passed, records[count].queue_offset if is_cut else next_offset, is_cut)

    def _filter(self, program: Program, data: bytes, ext: PullExt) -> tuple[list[_Record], Verdicts]:
        """On a worker thread."""
        records: list[_Record] = []
        messages: list[Message] = []
        unreadable: dict[int, str] = {}
        parts = read_body(lambda body: list(scan_bodies(bytes(body))), memoryview(data))
        for begin, end, queue_offset, sys_flag, body_begin, body_end, text_begin in parts:
            content = data[body_begin:body_end]
            if sys_flag & COMPRESSED:
                try:
                    content = inflate(sys_flag, content, self._body_bytes_max)
                except (DecompressionError, CodecMissing) as error:
                    unreadable[len(records)] = f"its body cannot be read: {error}"
                    content = b""
            records.append(_Record(begin, end, queue_offset))
            messages.append(Message(data[text_begin:end], content))
        verdicts = program.runs.run(messages, seconds_max=_RUN_SECONDS)
        done = len(verdicts.passes)
        known = {position: reason for position, reason in unreadable.items() if position < done}
        return records, verdicts._replace(failures=verdicts.failures | known)

    def _tell(self, ext: PullExt, queue_offset: int, reason: str, *, skips: bool) -> None:
        """Log a failure, at most one of a group and topic in ten seconds: the metrics count all of them."""
        key, now = (ext.consumer_group, ext.topic), self._clock()
        if now < self._told.get(key, 0.0):
            return
        if len(self._told) >= 10_000:
            self._told.clear()
        self._told[key] = now + _LOG_SECONDS
        self._log.warning(
            "filter_failed",
            group=ext.consumer_group,
            topic=ext.topic,
            queue=ext.queue_id,
            offset=queue_offset,
            reason=reason,
            outcome="skipped" if skips else "passed on",
        )


class _Reply(NamedTuple):
    code: int
    next_offset: int
    low: int
    high: int
    remark: str | None


def refusal(error: ClientError | ProgramRefused) -> tuple[int, str]:
    """The code and the text with which a request is refused."""
    if isinstance(error, BrokerError):
        return error.code, error.remark or str(error)
    if isinstance(error, ProgramRefused):
        return ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)
    return ResponseCode.SYSTEM_BUSY, str(error)
