"""Serves pulls through a filter: reads from the broker, and returns the messages that the filter accepts.
`pull_progress` decides when to respond, `picking` with which records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from mq.client.errors import BrokerError, ClientError
from mq.client.net.replies import fields_of
from mq.filter.programs import CLASS_FILTER, ProgramInvalid, ProgramName
from mq.filter_server.broker_link import BrokerLink
from mq.filter_server.figures import FilterCounters
from mq.filter_server.loaded_programs import Program, Programs
from mq.filter_server.picking import FilterResult, Records, pick, records_in, seen_by_filter
from mq.filter_server.pull_progress import EXAMINED_MAX, PullHead, PullProgress, PullResponse
from mq.filter_server.wasm_sandbox import Verdicts
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pull import PullExt, PullReply

SUSPEND: Final = 2
SUBSCRIPTION: Final = 4
HOLD_SECONDS_MAX: Final = 30.0
_PAUSE_SECONDS: Final = 0.05
_RUN_SECONDS: Final = 0.25
"""The time of one run of a filter; then another filter gets the thread."""
_LOG_SECONDS: Final = 10.0

Log = structlog.stdlib.BoundLogger


class FilteredPulls:
    """Serves pulls. `threads` limits how many filters run at the same time."""

    def __init__(
        self,
        link: BrokerLink,
        programs: Programs,
        figures: FilterCounters,
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
        self._log_again_at: dict[tuple[str, str], float] = {}

    async def pull(self, ext: PullExt, name: ProgramName, tags: str) -> PullResponse:
        """Serve a pull of the messages with these tags that a program accepts.

        Raises ClientError, ProgramInvalid; then nothing was passed on.
        """
        program = await self._programs.get(ext.consumer_group, ext.topic, name)
        hold_seconds = min(max(ext.suspend_timeout_ms, 0) / 1000, HOLD_SECONDS_MAX) if ext.sys_flag & SUSPEND else 0.0
        progress = PullProgress(int(ext.queue_offset), ext.max_messages, hold_seconds, self._clock())
        while not progress.is_over():
            batch = program.to_examine(progress.room_count, EXAMINED_MAX)
            try:
                reply, body = await self._read(ext, tags, progress.offset, batch, progress.read_until)
            except ClientError:
                if progress.fail():
                    raise
                break
            answer = progress.take_response(reply, self._clock())
            if answer is not None:
                return answer
            if reply.code != ResponseCode.SUCCESS:
                if not progress.is_over():
                    await trio.sleep(_PAUSE_SECONDS)  # there may be brokers that hold no more pulls
                continue
            if not await self._turn(program, ext.consumer_group, progress.turn_until):
                break
            progress.add_result(await self._examine(program, ext, body, reply.next_offset, progress), self._clock())
        if progress.nbytes:
            self._figures.add_passed(ext.consumer_group, progress.nbytes)
        return progress.response()

    async def _read(
        self, ext: PullExt, tags: str, offset: int, batch: int, deadline: float
    ) -> tuple[PullHead, memoryview]:
        pull_ext = PullExt(
            consumer_group=ext.consumer_group,
            topic=ext.topic,
            queue_id=ext.queue_id,
            queue_offset=QueueOffset(offset),
            max_messages=batch,
            sys_flag=SUBSCRIPTION | CLASS_FILTER | (SUSPEND if deadline > self._clock() else 0),
            commit_offset=QueueOffset(0),
            suspend_timeout_ms=0,
            sub_version=ext.sub_version,
            subscription=tags,
            expression_type="TAG",
        )
        response, body = await self._link.pull(pull_ext, deadline)
        reply = fields_of(PullReply, response)
        code, remark = response.code, response.remark
        return PullHead(code, reply.next_begin_offset, reply.min_offset, reply.max_offset, remark), body

    async def _turn(self, program: Program, group: str, deadline: float) -> bool:
        """Take the program's turn, once its group may use a processor again; False if neither happens in time."""
        with trio.move_on_at(deadline):
            await program.turn.acquire()
            try:
                if (pause := program.budget.wait_seconds(self._clock())) > 0:
                    self._figures.count_throttled(group, pause)
                    await trio.sleep(pause)
            except trio.Cancelled:
                program.turn.release()
                raise
            return True
        return False

    async def _examine(
        self, program: Program, ext: PullExt, body: memoryview, next_offset: int, progress: PullProgress
    ) -> FilterResult:
        """Filter the records of an answer, and take the accepted ones. Ends the turn."""
        data = bytes(body)
        try:
            records, verdicts = await trio.to_thread.run_sync(self._filter, program, data, limiter=self._threads)
            program.budget.spend(verdicts.seconds, self._clock())
        finally:
            program.turn.release()
        skips = program.name.on_error == "skip"
        passes, failures = verdicts.passes, verdicts.failures
        for position in failures:
            passes[position] = not skips
        program.count_messages(len(passes), sum(passes))
        selection = pick(data, records, passes, next_offset, count_max=progress.room_count, room=progress.room)
        positions = sorted(position for position in failures if position < selection.examined)
        for position in positions:
            self._log_failure(ext, records.queue_offsets[position], failures[position], skips=skips)
        self._figures.count_filtered(
            ext.consumer_group,
            examined=selection.examined,
            passed=len(selection.passed),
            failed=len(positions),
            seconds=verdicts.seconds,
        )
        return selection

    def _filter(self, program: Program, data: bytes) -> tuple[Records, Verdicts]:
        """Filter messages on a worker thread."""
        records = records_in(data)
        block, unreadable = seen_by_filter(data, records, self._body_bytes_max)
        verdicts = program.runs.run(block, seconds_max=_RUN_SECONDS)
        count = len(verdicts.passes)
        reasons = {position: reason for position, reason in unreadable.items() if position < count}
        return records, verdicts._replace(failures=verdicts.failures | reasons)

    def _log_failure(self, ext: PullExt, queue_offset: int, reason: str, *, skips: bool) -> None:
        """Log a failure, at most one of a group and topic in ten seconds: the metrics count all of them."""
        key, now = (ext.consumer_group, ext.topic), self._clock()
        if now < self._log_again_at.get(key, 0.0):
            return
        if len(self._log_again_at) >= 10_000:
            self._log_again_at.clear()
        self._log_again_at[key] = now + _LOG_SECONDS
        self._log.warning(
            "filter_failed",
            group=ext.consumer_group,
            topic=ext.topic,
            queue=ext.queue_id,
            offset=queue_offset,
            reason=reason,
            outcome="skipped" if skips else "passed on",
        )


def refusal(error: ClientError | ProgramInvalid) -> tuple[int, str]:
    """Return the response code and text for a request that failed with this error."""
    if isinstance(error, BrokerError):
        return error.code, error.remark or str(error)
    if isinstance(error, ProgramInvalid):
        return ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)
    return ResponseCode.SYSTEM_BUSY, str(error)
