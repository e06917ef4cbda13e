"""Blocking code of a thread or another process, run by a simulation: it moves only while the simulation waits for it.

So threads that take turns at a lock or a store are as repeatable as everything else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

_END_SECONDS: Final = 10.0


class StrandKilled(BaseException):
    """Raised in a strand whose process was killed."""


class Strand:
    """Runs ``work`` in a thread; each pause in it lasts until the simulation has called `resume` again.

    Args:
        later: ``later(seconds, step)`` runs a step in simulated time.
        over: called in the simulation when the work has returned, not if it was killed.

    Exceptions of the work are raised in the call that let it continue.
    """

    current: Strand | None = None
    """The strand that runs now; None while the simulation itself runs."""

    def __init__(
        self,
        work: Callable[[], None],
        later: Callable[[float, Callable[[], None]], None],
        over: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._later = later
        self._over = over
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None
        self._is_killed = False
        self.is_over = False
        self._begun = False

    def resume(self) -> None:
        """Let the strand run to its next pause, or its end."""
        if self.has_ended():
            return
        failure = self._switch()
        if failure is not None:
            raise failure
        if self.has_ended():
            self._over()

    def kill(self) -> None:
        """End the strand at its pause. Its requests that are under way still take effect."""
        if self.has_ended():
            return
        self._is_killed = True
        if self._begun:
            self._switch()
            self._thread.join(_END_SECONDS)
            assert not self._thread.is_alive(), "a strand goes on after it was killed"

    def pause(self, seconds: float) -> None:
        """Let ``seconds`` of simulated time pass within the strand. Raises StrandKilled."""
        assert Strand.current is self, "a strand pauses another one"
        self._later(seconds, self.resume)
        self._back.release()
        self._turn.acquire()
        if self._is_killed:
            raise StrandKilled

    def has_ended(self) -> bool:
        """Return whether the work of the strand has returned, or the strand was killed."""
        return self.is_over or self._is_killed

    def _switch(self) -> BaseException | None:
        before, Strand.current = Strand.current, self
        if not self._begun:
            self._begun = True
            self._thread.start()
        self._turn.release()
        self._back.acquire()
        Strand.current = before
        failure, self._failure = self._failure, None
        return failure

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._is_killed:
                self._work()
        except StrandKilled:
            pass
        except BaseException as error:  # noqa: ASYNC103 - `_switch` gives it to the caller of this strand
            self._failure = None if self._is_killed else error
        self.is_over = True
        self._back.release()


class StrandLock:
    """Replaces `threading.Lock` for strands. A strand that waits for it lets the simulation continue."""

    def __init__(self) -> None:
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            assert Strand.current is not None, "the event loop waits for a thread that reads the archive"
            Strand.current.pause(0.01)
        self._is_held = True

    def __exit__(self, *error: object) -> None:
        self._is_held = False
