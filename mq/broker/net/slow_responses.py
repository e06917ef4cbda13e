"""Builds long responses, such as those about all queues, in steps between other work."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

import trio

from mq.broker.base.archived_reads import ArchivedNotLoaded
from mq.broker.limits import DEFAULT
from mq.broker.net.call import Call
from mq.broker.net.linearizable_reads import ARCHIVE_LOADS_MAX, Read, when_current
from mq.broker.net.refusals import RequestRefused
from mq.protocol.codes import ResponseCode
from mq.protocol.frames import FRAME_BYTES_MAX

PAUSE_SECONDS = 0.005
"""Pause between two steps, for messages."""
WAITING_MAX = 16
"""Unfinished answers; further requests are refused with "busy"."""
WAITING_PER_CONNECTION_MAX = 4
ANSWER_BYTES_MAX = FRAME_BYTES_MAX - 1024 * 1024
"""Fits into a frame, with room for the header."""

ResponseSteps = Generator[None, None, bytes]
"""Yields where it may be interrupted, and returns the body. May raise RequestRefused."""


class _SlowResponse(NamedTuple):
    call: Call[Any]
    steps: Generator[None, None, bytes | None]
    again: Callable[[], None] | None = None
    """Begins the answer once more."""


class SlowResponses:
    """Builds unfinished responses in steps, in turn. `run` must run as a task.

    Args:
        wake: requests a turn of the event loop.
        clock: monotonic seconds.
        slice_seconds: maximum time of a step before other work gets its turn.
    """

    def __init__(
        self,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float],
        slice_seconds: float = DEFAULT.net.slice_seconds,
    ) -> None:
        self._slice_seconds = slice_seconds
        self._wake = wake
        self._clock = clock
        self._jobs: deque[_SlowResponse] = deque()
        self._has_jobs = trio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def work(
        self,
        call: Call[Any],
        steps: Generator[None, None, bytes | None],
        *,
        may_begin: bool = True,
        again: Callable[[], None] | None = None,
    ) -> None:
        """Send the result of ``steps`` (None: nothing), or the error that it raises.

        Sends it at once if it is finished in one step and ``may_begin`` is set, else later. Stops when the client
        disconnects. ``again`` is called if messages of the archive had to be loaded for it, when they are.
        """
        job = _SlowResponse(call, steps, again)
        if not may_begin or self._run_step(job):
            same = sum(each.call.connection is call.connection for each in self._jobs)
            if len(self._jobs) >= WAITING_MAX or same >= WAITING_PER_CONNECTION_MAX:
                refusal = RequestRefused(
                    ResponseCode.SYSTEM_BUSY,
                    f"{len(self._jobs)} long responses are being built, {same} of them for this connection: try again "
                    "later",
                )
                call.refuse(refusal)
                return
            self._jobs.append(job)
            self._has_jobs.set()

    def when_current(self, read: Read, call: Call[Any], respond: Callable[[], ResponseSteps]) -> None:
        """Call `work` with the steps of ``build()`` once this replica is up to date."""

        loads = 0

        def begin() -> None:
            self.work(call, respond(), again=again if loads < ARCHIVE_LOADS_MAX else None)

        def again() -> None:
            nonlocal loads
            loads += 1
            if not call.connection.closed:
                begin()

        when_current(read, call, begin)

    def check_invariants(self) -> None:
        """Assert that each unfinished response will be continued, and that no connection has too many, for tests."""
        assert not self._jobs or self._has_jobs.is_set(), f"nobody goes on with {len(self._jobs)} long responses"
        for connection, count in Counter(job.call.connection for job in self._jobs).items():
            assert count <= WAITING_PER_CONNECTION_MAX, f"{count} long responses are built for {connection.peer}"

    async def run(self) -> None:
        """Build unfinished responses until cancelled."""
        while True:
            await self._has_jobs.wait()
            while self._jobs:
                await trio.sleep(PAUSE_SECONDS)
                self.run_step()
                self._wake()
            self._has_jobs = trio.Event()

    def run_step(self) -> None:
        """Run one step of the unfinished response that waited longest, if any."""
        assert len(self._jobs) <= WAITING_MAX, f"{len(self._jobs)} long responses are being built"
        if not self._jobs:
            return
        job = self._jobs.popleft()
        if not job.call.connection.closed and self._run_step(job):
            self._jobs.append(job)

    def _run_step(self, job: _SlowResponse) -> bool:
        """Run one step, and return whether the response is unfinished."""
        until = self._clock() + self._slice_seconds
        try:
            next(job.steps)
            while self._clock() < until:
                next(job.steps)
        except StopIteration as stop:
            if stop.value is not None:
                job.call.answer(stop.value)
        except ArchivedNotLoaded as error:
            if job.again is None or not error.wait(job.again):
                job.call.refuse(error)
        except Exception as error:
            job.call.refuse(error)
        else:
            return True
        return False


def join_parts(parts: Iterable[bytes]) -> ResponseSteps:
    """Join the parts with commas. Raises RequestRefused if the result is too long for a response."""
    texts: list[bytes] = []
    nbytes = 0
    for text in parts:
        texts.append(text)
        nbytes += len(text) + 1
        check_length(nbytes)
        yield
    return b",".join(texts)


def check_length(nbytes: int) -> None:
    """Raise RequestRefused if a response of ``nbytes`` is too long."""
    if nbytes > ANSWER_BYTES_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the response is longer than {ANSWER_BYTES_MAX} bytes; request less"
        )
