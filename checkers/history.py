"""Histories: the events of a run in order of observation, as workloads write and checkers read them.

A history is a file of JSON lines, one event each. All times come from one monotonic clock, in nanoseconds:

    {"i":0,"t":81234,"p":3,"type":"invoke","f":"send","k":"Log/0","v":"3.17.100"}
    {"i":1,"t":93456,"p":3,"type":"ok","f":"send","k":"Log/0","v":"3.17.100","o":12}

An operation begins with `invoke` and ends with one of three words. `ok`: it happened. `fail`: it certainly did not.
`info`: unknown, as after a timeout; it stays open for ever, and its process is never used again. An operation without
an end is `info` as well. A delivery to a consumer has no beginning: it is one event, `ok`.

Fields: `i` number of the event, `t` time, `p` process (a number for clients, "nemesis" for faults, "run" for the run
itself), `type`, `f` operation, `k` queue ("topic/queue id"), `v` value, `o` queue offset, `n` replica, `err` reason,
`again` true when the client may have stored the value more than once, `pos` where the stored record is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from checkers.events import FORMAT, NEMESIS, OPERATIONS, RUN, Event, why_no_end, why_refused

Outcome = Literal["ok", "fail", "info"]


class Operation(msgspec.Struct, frozen=True, gc=False):
    """A client's operation with both ends. Times are nanoseconds; ``ended`` is None if it never ended.

    ``value`` is the requested value, ``result`` the returned one; the offset is the answer's, or the request's if the
    answer has none.
    """

    index: int
    process: int
    name: str
    outcome: Outcome
    began: int
    ended: int | None
    queue: str | None = None
    value: Any = None
    result: Any = None
    offset: int | None = None
    node: str | None = None
    error: str | None = None
    again: bool = False
    position: int | None = None
    asked_queue: str | None = None
    """The requested queue, if the answer names another one."""

    @property
    def place(self) -> str:
        """Queue and offset, as text."""
        return f"{self.queue}@{self.offset}"


class Fault(msgspec.Struct, frozen=True):
    """An injected fault. ``ended`` is None if the run ended first; ``seen`` says how its effect was observed, None if
    it was not. ``majority``: enough replicas were left to acknowledge messages.
    """

    number: int
    kind: str
    what: str
    nodes: tuple[str, ...]
    began: int
    ended: int | None
    seen: str | None
    majority: bool


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Messages of one queue received at one time: by a consumer, or by a reader at a replica."""

    at: int
    queue: str
    operation: Operation

    @property
    def by_consumer(self) -> bool:
        """Whether a member of a group received them, and not a reader of a single queue."""
        return self.operation.name == "receive"

    @property
    def by(self) -> str:
        """The receiver, as text."""
        operation = self.operation
        return f"a reader at {operation.node}" if operation.node else f"consumer {operation.process}"

    @property
    def messages(self) -> Sequence[Sequence[Any]]:
        """Offset and value of each message, and the checksum of the stored record if it is known."""
        operation = self.operation
        return [(operation.offset, operation.result)] if operation.name == "receive" else operation.result


class HistoryDamaged(Exception):
    """An invalid line of a history; ``line`` is its number, from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line


class History(msgspec.Struct, frozen=True):
    """The events of a run.

    ``events`` are about the run itself and faults; ``operations`` are the clients', in order of beginning. ``began``
    and ``ended`` are the times of the first and the last event, 0 if there is none.
    """

    events: list[Event]
    operations: list[Operation]
    faults: list[Fault]
    plan: dict[str, Any]
    """The plan of the run: the value of its first event."""
    began: int
    ended: int

    def named(self, *names: str) -> Iterator[Operation]:
        """The operations with one of these names, in the order in which they began."""
        return (operation for operation in self.operations if operation.name in names)

    def of_run(self, name: str) -> Iterator[Event]:
        """Events of the run itself."""
        return (event for event in self.events if event.p == RUN and event.f == name)

    @property
    def nodes(self) -> list[str]:
        """All replicas in the group at the end."""
        members = [event.v for event in self.of_run("members")]
        return list(members[-1] if members else self.plan.get("nodes", ()))

    @property
    def queues(self) -> list[str]:
        """All queues that clients used."""
        return list(self.plan.get("queues", ()))

    @property
    def is_complete(self) -> bool:
        """Whether the run completed, including final reads."""
        return any(True for _ in self.of_run("end"))


_DECODER = msgspec.json.Decoder(Event)


def decode_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events of a history. An incomplete last line is ignored: the run was killed while it wrote.

    Raises HistoryDamaged, also for an event that lacks a required field, and for a time before the previous one.
    """
    before = 0
    for number, line in enumerate(lines, 1):
        try:
            event = _DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if not line.endswith(b"\n"):
                return
            raise HistoryDamaged(number, str(error)) from error
        if event.i != number - 1:
            raise HistoryDamaged(number, f"event number {event.i}; expected: {number - 1}")
        if event.t < before:
            raise HistoryDamaged(number, f"its time, {event.t}, is before that of the last event, {before}")
        if (reason := why_refused(event)) is not None:
            raise HistoryDamaged(number, reason)
        before = event.t
        yield event


def gather(events: Iterable[Event]) -> History:
    """Combine beginnings and ends.

    Raises HistoryDamaged for an end without a beginning or of another operation, for a second beginning, and for a
    history in an unsupported format.
    """
    others: list[Event] = []
    open_invocations: dict[int, Event] = {}
    operations: list[Operation] = []
    retired_processes: set[int] = set()
    texts = _Texts()
    first, last = None, 0
    for event in events:
        first, last = event.t if first is None else first, event.t
        if not isinstance(event.p, int):
            others.append(event)
            if event.f == "begin" and (version := event.v.get("format", FORMAT)) != FORMAT:
                raise HistoryDamaged(event.i + 1, f"the history has format {version}, this version reads {FORMAT}")
            continue
        if event.p in retired_processes:
            raise HistoryDamaged(event.i + 1, f"process {event.p} continued although its last operation is open")
        if event.type == "ok" and OPERATIONS[event.f].is_handed:
            # A delivery may arrive while the process waits for something else.
            operations.append(_operation(event, event, texts))
            continue
        start = open_invocations.pop(event.p, None)
        if event.type == "invoke":
            if start is not None:
                raise HistoryDamaged(event.i + 1, f"process {event.p} began although its last operation is open")
            open_invocations[event.p] = event
            continue
        if event.type == "info":
            retired_processes.add(event.p)
        if start is None or start.f != event.f:
            raise HistoryDamaged(event.i + 1, f"process {event.p} ended {event.f}, which it never began")
        if (reason := why_no_end(start, event)) is not None:
            raise HistoryDamaged(event.i + 1, reason)
        operations.append(_operation(start, event, texts))
    operations += [_operation(event, None, texts) for event in open_invocations.values()]
    operations.sort(key=lambda operation: operation.index)
    plan: dict[str, Any] = next((event.v for event in others if event.p == RUN and event.f == "begin"), {})
    return History(others, operations, _faults(others), plan, first or 0, last)


class _Texts(dict[str, str]):
    """Interns texts: a value occurs in its send and in the reads of every replica."""

    def __missing__(self, text: str) -> str:
        self[text] = text
        return text

    def share_in(self, values: list[Any]) -> list[Any]:
        """Return a list with its texts interned, also in nested lists."""
        for at, each in enumerate(values):
            if type(each) is str:
                values[at] = self[each]
            elif type(each) is list:
                self.share_in(each)
        return values


def _operation(start: Event, ended: Event | None, texts: _Texts) -> Operation:
    assert isinstance(start.p, int), f"event {start.i} is no client's"
    end = ended if ended is not None else start
    assert ended is None or ended.type != "invoke", f"event {end.i} ends nothing"
    outcome: Outcome = "info" if ended is None or ended.type == "invoke" else ended.type
    queue = end.k if end.k is not None else start.k
    node = end.n if end.n is not None else start.n
    value, result = start.v, None if ended is None else ended.v
    # Runs for each operation of a history of a million: no call for a plain text.
    if type(value) is str:
        value = texts[value]
    elif type(value) is list:
        texts.share_in(value)
    if type(result) is str:
        result = texts[result]
    elif type(result) is list:
        texts.share_in(result)
    return Operation(
        index=start.i,
        process=start.p,
        name=texts[start.f],
        outcome=outcome,
        began=start.t,
        ended=None if ended is None else ended.t,
        queue=None if queue is None else texts[queue],
        value=value,
        result=result,
        offset=end.o if end.o is not None else start.o,
        node=None if node is None else texts[node],
        error=end.err,
        again=end.again or start.again,
        position=end.pos,
        asked_queue=start.k if start.k is not None and start.k != queue else None,
    )


def _faults(events: list[Event]) -> list[Fault]:
    """Gather faults. Raises HistoryDamaged if one begins or ends twice, or is confirmed or ends without a begin."""
    faults: dict[int, Fault] = {}
    for event in events:
        if event.p != NEMESIS:
            continue
        number = event.v["id"]
        fault = faults.get(number)
        if event.f == "begins":
            if fault is not None:
                raise HistoryDamaged(event.i + 1, f"fault {number} begins twice")
            nodes = tuple(event.v["nodes"])
            faults[number] = Fault(
                number, event.v["kind"], event.v["what"], nodes, event.t, None, None, event.v["majority"]
            )
        elif fault is None:
            raise HistoryDamaged(event.i + 1, f"fault {number} never began")
        elif event.f == "confirmed":
            faults[number] = msgspec.structs.replace(fault, seen=event.v["seen"])
        elif fault.ended is not None:
            raise HistoryDamaged(event.i + 1, f"fault {number} ends twice")
        else:
            faults[number] = msgspec.structs.replace(fault, ended=event.t)
    return list(faults.values())


def batches(history: History) -> list[Batch]:
    """List everything that was received, in order."""
    rows = [
        Batch(operation.ended, operation.queue, operation)
        for operation in history.named("receive", "read", "bulk-read", "poll", "final-read")
        if operation.outcome == "ok" and operation.queue is not None and operation.ended is not None
    ]
    rows.sort(key=lambda batch: batch.at)
    return rows


class FinalQueue(msgspec.Struct, frozen=True):
    """The final content of one queue on one replica: values by offset, and whether it was read to its end.

    ``first`` is the offset at which the queue begins: earlier messages were removed with the oldest files. ``read_to``
    is the offset at which the reader found the end, None if unknown.
    """

    values: dict[int, str]
    complete: bool
    first: int = 0
    read_to: int | None = None

    @property
    def end(self) -> int:
        """The offset after the last message, if none is missing."""
        return self.first + len(self.values)


def final_reads(history: History) -> dict[tuple[str, str], FinalQueue]:
    """Map each replica and queue to its final reads; a queue that was never read is included, empty and incomplete."""
    values: dict[tuple[str, str], dict[int, str]] = {(n, k): {} for n in history.nodes for k in history.queues}
    complete: dict[tuple[str, str], int | None] = {}
    firsts: dict[tuple[str, str], int] = {}
    for operation in history.named("final-read", "removed"):
        if operation.outcome == "ok" and operation.node is not None and operation.queue is not None:
            key = (operation.node, operation.queue)
            if operation.name == "removed":
                firsts[key] = operation.offset or 0
                values[key] = {}  # retention may have removed earlier messages in the meantime
                continue
            if operation.offset == 0:
                values[key] = {}  # read from its beginning, perhaps once more
                complete.pop(key, None)
                firsts.pop(key, None)
            values.setdefault(key, {}).update((offset, value) for offset, value, *_ in operation.result)
            if not operation.result:
                complete[key] = operation.offset
    return {
        key: FinalQueue(found, key in complete, firsts.get(key, 0), complete.get(key)) for key, found in values.items()
    }


def bases(history: History) -> dict[str, int]:
    """The beginning of each replica's log at the end: retention has removed records at lower positions."""
    return {str(event.n): int(event.v) for event in history.of_run("base")}
