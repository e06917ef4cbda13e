"""A request of a browser, and the page or the change that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from mq.console.change_records import Records
from mq.console.jobs import Jobs
from mq.console.sessions import Session
from mq.console.settings import ConsoleSettings
from mq.console.views.text import duration
from mq.console.watch import CachedAnswer, Watch


class NotFound(Exception):
    """The address names something that does not exist; the message says what."""


class InputInvalid(Exception):
    """A form asks for something impossible; the message says why."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to the console: its user, page and parameters.

    Attributes:
        query: the parameters of the address; the last one of those named twice.
        wall_clock_ms: milliseconds since 1970.
    """

    query: Mapping[str, str]
    session: Session
    watch: Watch
    settings: ConsoleSettings
    jobs: Jobs
    records: Records
    wall_clock_ms: Callable[[], int]

    @property
    def signed_as(self) -> str:
        """The access key that signs requests to brokers: the user's, or the console's; empty if they are not signed."""
        credentials = self.watch.remoting.credentials
        return "" if credentials is None else credentials.access_key

    @property
    def now_ms(self) -> int:
        """The time, in milliseconds since 1970."""
        return self.wall_clock_ms()

    @property
    def page(self) -> int:
        """The number of the requested page of a list, from 1."""
        return self.number("page", 1)

    def number(self, parameter: str, default: int) -> int:
        """Return a parameter as a number, 0 or more; ``default`` for anything else."""
        text = self.query.get(parameter, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default

    def name(self, parameter: str = "name") -> str:
        """Return a parameter that must not be missing. Raises NotFound."""
        text = self.query.get(parameter, "")
        if not text:
            raise NotFound(f"the address has no {parameter}")
        return text


@dataclass(frozen=True, slots=True)
class Page:
    """A template and the values to fill it with. The browser refreshes ``live`` pages without a reload."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    live: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a change: the page to show next, and a text for it. ``target`` is for the record of changes."""

    to: str
    message: str
    target: str


Form = Mapping[str, list[str]]
Build = Callable[[Visit], Awaitable[Page]]
Change = Callable[[Visit, Form], Awaitable[Outcome]]


def fault_of(cached: CachedAnswer[Any]) -> str:
    """Say why there is no newer answer, and how old the shown one is; empty if the answer is new."""
    if not cached.fault or cached.value is None:
        return cached.fault
    return f"{cached.fault}. What is shown was so {duration(trio.current_time() - cached.at)} ago"


def one(form: Form, name: str, default: str = "") -> str:
    """Return a field of a form, without the spaces around it."""
    return (form.get(name) or [default])[-1].strip()


def require(form: Form, name: str) -> str:
    """Return a field of a form that must not be empty. Raises InputInvalid."""
    text = one(form, name)
    if not text:
        raise InputInvalid(f"{name} is missing")
    return text


def integer(form: Form, name: str, low: int, high: int) -> int:
    """Return a field as a number from ``low`` to ``high``, both included. Raises InputInvalid."""
    text = require(form, name)
    if not (text.isascii() and text.isdigit() and len(text) < 19 and low <= int(text) <= high):
        raise InputInvalid(f"{name} is {text[:40]!r}, not a number from {low:,} to {high:,}")
    return int(text)
