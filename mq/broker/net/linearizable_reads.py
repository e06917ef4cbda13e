"""Retries linearizable reads across a change of leadership, for handlers that wait for one.

A read asks the leader for the commit index, and fails if the leader loses its leadership. A new leader can answer a
moment later, so the read is retried without the client noticing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mq.broker.base.archived_reads import ArchivedNotLoaded
from mq.broker.limits import DEFAULT
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.protocol.codes import ResponseCode

Read = Callable[[Callable[[bool], None]], None]
"""Calls back with True once everything is applied that was committed anywhere before, or with False if that cannot be
confirmed.
"""

OnRead = Callable[[bool], None]

ARCHIVE_LOADS_MAX = 64
"""Blocks of the archive that one answer may need, one after the other: more than a search by time does."""

PATIENCE_SECONDS = 2.5
"""Total time of retries; stock clients wait 3 s for an answer."""


class LinearizableReads:
    """Retries a linearizable read until it is confirmed or times out.

    Args:
        read: one attempt; calls back with True once everything is applied that was committed anywhere before, or with
            False if that cannot be confirmed.
        clock: monotonic seconds.
        waiting_max: with this many open reads, further ones fail at once.
    """

    def __init__(
        self,
        read: Callable[[OnRead], None],
        clock: Callable[[], float],
        waiting_max: int = DEFAULT.net.reads_waiting_max,
    ) -> None:
        self._waiting_max = waiting_max
        self._read = read
        self._clock = clock
        self._failures: list[tuple[OnRead, float]] = []
        self._open = 0

    def read(self, on_read: OnRead) -> None:
        """Confirm a read with retries: ``on_read(False)`` is called only after `PATIENCE_SECONDS`."""
        self._begin(on_read, self._clock() + PATIENCE_SECONDS)

    def read_once(self, on_read: OnRead) -> None:
        """Confirm a read without retries: ``on_read(False)`` is called once this replica knows its role."""
        self._begin(on_read, 0.0)

    @property
    def retries(self) -> int:
        """The number of failed reads that `try_again` will retry."""
        return len(self._failures)

    def try_again(self) -> None:
        """Retry failed reads. Called by a timer and when the leader changes."""
        failures, self._failures = self._failures, []
        assert len(failures) <= self._open, f"{len(failures)} reads have failed, {self._open} are open"
        now = self._clock()
        for on_read, until in failures:
            if until <= now:
                self._open -= 1
                assert self._open >= 0, f"{self._open} reads are open"
                on_read(False)
            else:
                self._attempt(on_read, until)

    def check_invariants(self) -> None:
        """Assert that open reads are counted right, for tests."""
        failure_count, open_max = len(self._failures), self._waiting_max
        assert failure_count <= self._open <= open_max, (
            f"{failure_count} of {self._open} reads have failed; maximum: {open_max}"
        )

    def _begin(self, on_read: OnRead, until: float) -> None:
        if self._open >= self._waiting_max:
            on_read(False)
        else:
            self._open += 1
            self._attempt(on_read, until)

    def _attempt(self, on_read: OnRead, until: float) -> None:
        def on_confirm(is_known: bool) -> None:
            if is_known:
                self._open -= 1
                assert self._open >= 0, f"{self._open} reads are open"
                on_read(True)
            else:
                self._failures.append((on_read, until))

        self._read(on_confirm)


def when_current(read: Read, call: Call[Any], respond: Callable[[], bytes | None]) -> None:
    """Once this replica is up to date, send what ``respond`` returns (None: nothing), or the error that it raises.
    ``respond`` is called again after messages that it needs were loaded from the archive.
    """
    call.drop_body()
    loads = 0

    def on_confirm(is_known: bool) -> None:
        nonlocal loads
        if call.connection.closed:
            return
        try:
            if not is_known:
                raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the group has no leader to confirm this read")
            response = respond()
        except ArchivedNotLoaded as error:
            loads += 1
            if loads > ARCHIVE_LOADS_MAX or not error.wait(partial(on_confirm, is_known)):
                call.refuse(error)
        except Exception as error:
            call.refuse(error)
        else:
            if response is not None:
                call.answer(response)

    read(on_confirm)
