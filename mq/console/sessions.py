"""Keeps the sessions of browsers, and limits failed logins. Pure: time and tokens come from outside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

SESSIONS_MAX: Final = 1000
"""The session that was used least recently ends when there are more."""
FAILURES_MAX: Final = 5
"""Failed logins of an address, or for a user, before both have to wait."""
FAILURES_SECONDS: Final = 60.0
FAILING_MAX: Final = 10_000


@dataclass(slots=True)
class Session:
    """The session of a browser. ``user`` is the access key, empty without a login."""

    key: str
    csrf: str
    user: str
    began: float
    used_at: float
    notices: list[str] = field(default_factory=list)
    """Messages about changes, to be shown on the next page."""


class Sessions:
    """Keeps all sessions, by the key in the cookie.

    Args:
        new_token: returns a text that cannot be guessed.
        idle_seconds, seconds_max: a session ends this long after its last request, or after its beginning.
        on_end: is called with a session that ended.
    """

    def __init__(
        self,
        new_token: Callable[[], str],
        idle_seconds: float,
        seconds_max: float,
        on_end: Callable[[Session], None] = lambda _: None,
    ) -> None:
        self._new_token = new_token
        self._idle_seconds = idle_seconds
        self._seconds_max = seconds_max
        self._on_end = on_end
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: str, now: float) -> Session:
        """Begin a new session. If there are too many, this ends another one."""
        self.expire(now)
        session = Session(self._new_token(), self._new_token(), user, now, now)
        self._sessions[session.key] = session
        if len(self._sessions) > SESSIONS_MAX:
            self.end(next(iter(self._sessions)))
        return session

    def find(self, key: str, now: float, *, is_use: bool = True) -> Session | None:
        """Return the session with this key; None if there is none or it has ended. ``is_use`` extends its time."""
        session = self._sessions.get(key)
        if session is None:
            return None
        if self._has_ended(session, now):
            self.end(key)
            return None
        if is_use:
            session.used_at = now
            self._sessions.move_to_end(key)
        return session

    def end(self, key: str) -> None:
        """End a session, if there is one."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._on_end(session)

    def expire(self, now: float) -> None:
        """End all sessions whose time is over."""
        for key in [each.key for each in self._sessions.values() if self._has_ended(each, now)]:
            self.end(key)

    def _has_ended(self, session: Session, now: float) -> bool:
        return now >= session.used_at + self._idle_seconds or now >= session.began + self._seconds_max


class LoginLimit:
    """Counts failed logins by address and by user. Makes them wait after `FAILURES_MAX` in `FAILURES_SECONDS`."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait_seconds(self, keys: tuple[str, ...], now: float) -> float:
        """Return in how many seconds the next login may be tried; 0 if it may be tried now."""
        return max((self._wait(key, now) for key in keys), default=0.0)

    def on_failure(self, keys: tuple[str, ...], now: float) -> None:
        """Count a failed login."""
        for key in keys:
            recent = self._recent(key, now)
            self._failures[key] = [*recent, now][-FAILURES_MAX:]
            self._failures.move_to_end(key)
        while len(self._failures) > FAILING_MAX:
            self._failures.popitem(last=False)

    def uncount_failure(self, keys: tuple[str, ...], now: float) -> None:
        """Uncount the last failed login. Earlier ones stay: a valid login must not reset the limit."""
        for key in keys:
            recent = self._recent(key, now)[:-1]
            if recent:
                self._failures[key] = recent
            else:
                self._failures.pop(key, None)

    def _wait(self, key: str, now: float) -> float:
        recent = self._recent(key, now)
        return recent[0] + FAILURES_SECONDS - now if len(recent) >= FAILURES_MAX else 0.0

    def _recent(self, key: str, now: float) -> list[float]:
        return [at for at in self._failures.get(key, ()) if now < at + FAILURES_SECONDS]
