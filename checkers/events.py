"""Events of a history and their required fields, which checkers rely on. Pure.

Names are in the tables of `docs/jepsen.md`. An event with an unknown name is refused: a checker that ignores it must
not call the run valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

FORMAT = 1

Type = Literal["invoke", "ok", "fail", "info"]

NEMESIS = "nemesis"
RUN = "run"
TLS = "tls"
"""The part of a plan's security that means encrypted connections."""
COMPILED, OTHERS = "compiled", "others"
"""The forms of the send path."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One line of a history; the docstring of `checkers.history` describes its fields."""

    i: int
    t: int
    p: int | str
    type: Type
    f: str
    k: str | None = None
    v: Any = None
    o: int | None = None
    n: str | None = None
    err: str | None = None
    again: bool = False
    pos: int | None = None


Pair = tuple[str, str]
Register = int | str | None
Polled = list[tuple[int, str]]
"""Offset and value of each message."""
Records = list[tuple[int, str, int]]
"""Offset, value and checksum of each stored record."""
Popped = list[tuple[str, int, str]]
"""Queue, offset and value of each message."""


class OperationSchema(NamedTuple):
    """The fields of a client operation's events.

    Attributes:
        asked: type of the value at the beginning.
        answered: type of the value at an `ok` end. If it is the same type, it must be the same value.
        needs: fields required at an `ok` end.
        asked_with: fields required at the beginning.
        is_handed: without a beginning: a single event, such as a delivery to a client.
    """

    asked: Any = None
    answered: Any = None
    needs: tuple[str, ...] = ()
    asked_with: tuple[str, ...] = ()
    is_handed: bool = False


OPERATIONS: Mapping[str, OperationSchema] = {
    "send": OperationSchema(str, str, ("k", "o")),
    "proxied-send": OperationSchema(str, str),
    "half": OperationSchema(str, str),
    "stage": OperationSchema(str, str),
    "schedule": OperationSchema(str, str, (), ("o",)),
    "attempt": OperationSchema(str, str, ("k", "o")),
    "recall": OperationSchema(str, str),
    "receive": OperationSchema(None, str, ("k", "o"), is_handed=True),
    "read": OperationSchema(None, Records, ("k", "n")),
    "final-read": OperationSchema(None, Records, ("k", "n")),
    "dead-read": OperationSchema(None, Records, ("n",)),
    "bulk-read": OperationSchema(int, Records, ("k", "n", "o")),
    "removed": OperationSchema(None, None, ("k", "n", "o"), is_handed=True),
    "poll": OperationSchema(None, Polled, ("k",), is_handed=True),
    "seek": OperationSchema(None, None, ("k", "o")),
    "end": OperationSchema(None, None, ("k", "n", "o")),
    "known-end": OperationSchema(None, None, ("k", "n", "o")),
    "identity": OperationSchema(None, str, ("n",), is_handed=True),
    "commit": OperationSchema(str, str, ("k", "o")),
    "stored": OperationSchema(str, str, ("k", "n", "o")),
    "handle": OperationSchema(None, None, ("k", "o")),
    "end-transaction": OperationSchema(Pair, Pair),
    "check": OperationSchema(None, Pair, is_handed=True),
    "pop": OperationSchema(None, Popped, (), ("o",)),
    "ack": OperationSchema(str, str, ("k",), ("o",)),
    "give-back": OperationSchema(str, str, ("k",), ("o",)),
    "try": OperationSchema(None, str, ("o",), is_handed=True),
    "write": OperationSchema(Register, Register, ("k",)),
    "get": OperationSchema(None, Register, ("k",)),
    "join": OperationSchema(),
    "find-key": OperationSchema(str, Popped, ("n",)),
    "find-time": OperationSchema(int, int, ("k", "n", "o")),
    "recreate": OperationSchema(str, str),
    "leave": OperationSchema(),
}


class Plan(msgspec.Struct):
    """The part of a run's plan that checkers and the report need."""

    workload: str = ""
    format: int = 1
    nodes: list[str] = []
    queues: list[str] = []
    nemeses: list[str] = []
    programs: list[str] = []


class Begins(msgspec.Struct):
    """The value of an event: a fault begins."""

    id: int
    kind: str
    what: str
    nodes: list[str]
    majority: bool


class Confirmed(msgspec.Struct):
    """The value of an event: the effect of a fault was seen."""

    id: int
    seen: str


class Ends(msgspec.Struct):
    """The value of an event: a fault is over."""

    id: int


class TookPart(msgspec.Struct):
    """The value of an event: the work of a client in a separate process."""

    sent: int
    received: int


class SendPaths(msgspec.Struct):
    """The value of an event: the numbers of messages by form of the send path; see `COMPILED`."""

    compiled: int
    others: int


class NoteSchema(NamedTuple):
    """The fields of an event of the run itself or of a fault: the type of its value, and required fields."""

    value: Any = None
    needs: tuple[str, ...] = ()


FAULTS: Mapping[str, NoteSchema] = {
    "begins": NoteSchema(Begins),
    "confirmed": NoteSchema(Confirmed),
    "ends": NoteSchema(Ends),
}

NOTES: Mapping[str, NoteSchema] = {
    "begin": NoteSchema(Plan),
    "end": NoteSchema(),
    "role": NoteSchema(Pair, ("n",)),
    "ended": NoteSchema(None, ("n", "err")),
    "misbehaved": NoteSchema(None, ("n", "err")),
    "not-repaired": NoteSchema(list[str], ("n",)),
    "not-recovered": NoteSchema(None, ("err",)),
    "memory": NoteSchema(int, ("n",)),
    "members": NoteSchema(list[str]),
    "base": NoteSchema(int, ("n",)),
    "verified": NoteSchema(str, ("n",)),
    "final-round": NoteSchema(int),
    "store-ranges": NoteSchema(int),
    "skew": NoteSchema(float, ("n",)),
    "still-sending": NoteSchema(int),
    "compared": NoteSchema(list[str]),
    "said": NoteSchema(str, ("n",)),
    "met": NoteSchema(dict[str, int], ("n",)),
    "took-part": NoteSchema(TookPart, ("n",)),
    "send-paths": NoteSchema(SendPaths),
    "stream-made-again": NoteSchema(),
}


def why_refused(event: Event) -> str | None:
    """The reason that this event by itself is invalid; None if it is valid."""
    if isinstance(event.p, int):
        return _of_client(event)
    notes = {NEMESIS: FAULTS, RUN: NOTES}.get(event.p)
    if notes is None:
        return f"there is no process {event.p!r}"
    note = notes.get(event.f)
    if note is None:
        return f"{event.p} has no event {event.f!r}"
    if event.type != "info":
        return f"{event.p} {event.f} is {event.type}, not info"
    return _missing(event, note.needs) or _mistyped(event, note.value)


def _of_client(event: Event) -> str | None:
    operation = OPERATIONS.get(event.f)
    if operation is None:
        return f"there is no operation {event.f!r}"
    if event.type == "ok":
        return _missing(event, operation.needs) or _mistyped(event, operation.answered)
    if event.type == "invoke":
        if operation.is_handed:
            return f"{event.f} has no beginning"
        return _missing(event, operation.asked_with) or _mistyped(event, operation.asked)
    return None


def _missing(event: Event, names: tuple[str, ...]) -> str | None:
    for name in names:
        if getattr(event, name) is None:
            return f"{event.type} of {event.f} has no field {name}"
    return None


def _mistyped(event: Event, kind: Any) -> str | None:
    if kind is None or (kind is str and type(event.v) is str):
        return None
    try:
        msgspec.convert(event.v, kind)
    except msgspec.ValidationError as error:
        return f"the value of {event.f} is not as it must be: {error}"
    return None


def why_no_end(start: Event, end: Event) -> str | None:
    """The reason that the second event cannot end the operation that the first one began; None if it can."""
    operation = OPERATIONS[start.f]
    if operation.asked is operation.answered and operation.asked is not None and end.v not in (None, start.v):
        return f"process {end.p} began {start.f} of {start.v} and ended that of {end.v}"
    for name in ("k", "n"):
        start_value, end_value = getattr(start, name), getattr(end, name)
        if start_value is not None and end_value is not None and start_value != end_value and start.f != "send":
            return f"process {end.p} began {start.f} with {name} {start_value} and ended it with {end_value}"
    return None
