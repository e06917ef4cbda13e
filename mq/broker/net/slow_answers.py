"""Answers that take long to make, such as those about all queues: made a little at a time, between other work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

import trio

from mq.broker.net.call import Call
from mq.broker.net.errors import RequestRefused
from mq.broker.net.linearizable_reads import Read
from mq.protocol.codes import ResponseCode
from mq.protocol.frames import FRAME_BYTES_MAX

SLICE_SECONDS = 0.005
"""So long an answer is worked at before others get their turn."""
PAUSE_SECONDS = 0.005
"""Between two slices, when messages get theirs."""
WAITING_MAX = 16
"""Unfinished answers; whoever asks for more of them is told that the broker is busy."""
WAITING_PER_CONNECTION_MAX = 4
ANSWER_BYTES_MAX = FRAME_BYTES_MAX - 1024 * 1024
"""What fits into a frame, with room for the header."""

Answer = Generator[None, None, bytes]
"""Yields now and then, when it may be interrupted, and returns the text. May raise RequestRefused."""


class _Job(NamedTuple):
    call: Call[Any]
    answer: Generator[None, None, bytes | None]


class SlowAnswers:
    """Works at unfinished answers, each for a moment in turn; `run` must run as a task.

    Args:
        wake: asks for a turn of the event loop.
        clock: seconds, never falling.
    """

    def __init__(self, *, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        self._wake = wake
        self._clock = clock
        self._jobs: deque[_Job] = deque()
        self._has_jobs = trio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def work(
        self,
        call: Call[Any],
        answer: Generator[None, None, bytes | None],
        *,
        may_begin: bool = True,
    ) -> None:
        """Send what ``answer`` returns, unless that is None, or the refusal that it raises.

        That is at once if it is made in no time and ``may_begin`` at once, else later. It is not made to the end for a
        client that is gone.
        """
        job = _Job(call, answer)
        if not may_begin or self._goes_on(job):
            same = sum(each.call.connection is call.connection for each in self._jobs)
            if len(self._jobs) >= WAITING_MAX or same >= WAITING_PER_CONNECTION_MAX:
                refusal = RequestRefused(
                    ResponseCode.SYSTEM_BUSY,
                    f"{len(self._jobs)} long answers are being built, {same} of them for this connection",
                )
                call.refuse(refusal)
                return
            self._jobs.append(job)
            self._has_jobs.set()

    def when_current(self, read: Read, call: Call[Any], answer: Callable[[], Answer]) -> None:
        """`work`, once this replica is up to date."""

        call.drop_body()

        def known(is_known: bool) -> None:
            if call.connection.closed:
                return
            if is_known:
                self.work(call, answer())
            else:
                refusal = RequestRefused(
                    ResponseCode.SERVICE_NOT_AVAILABLE, "the group has no leader to confirm this read"
                )
                call.refuse(refusal)

        read(known)

    async def run(self) -> None:
        """Work at what is unfinished, until cancelled."""
        while True:
            await self._has_jobs.wait()
            while self._jobs:
                await trio.sleep(PAUSE_SECONDS)
                job = self._jobs.popleft()
                if not job.call.connection.closed and self._goes_on(job):
                    self._jobs.append(job)
                self._wake()
            self._has_jobs = trio.Event()

    def _goes_on(self, job: _Job) -> bool:
        """Work at an answer for a moment; returns whether it is unfinished."""
        until = self._clock() + SLICE_SECONDS
        try:
            next(job.answer)
            while self._clock() < until:
                next(job.answer)
        except StopIteration as stop:
            if stop.value is not None:
                job.call.answer(stop.value)
        except Exception as error:
            job.call.refuse(error)
        else:
            return True
        return False


def joined(parts: Iterable[bytes]) -> Answer:
    """The parts, joined by commas. Raises RequestRefused when that is too long for an answer."""
    texts: list[bytes] = []
    nbytes = 0
    for text in parts:
        texts.append(text)
        nbytes += len(text) + 1
        check_length(nbytes)
        yield
    return b",".join(texts)


def check_length(nbytes: int) -> None:
    """Raises RequestRefused if an answer of so many bytes is too long."""
    if nbytes > ANSWER_BYTES_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the answer is longer than {ANSWER_BYTES_MAX} bytes; request less"
        )
