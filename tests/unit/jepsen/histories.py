"""Histories for the tests of checkers, written event by event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checkers.events import NEMESIS, RUN, Event, Type
from checkers.history import History, gather

NODES = ("n0", "n1", "n2")
QUEUE = "Log/0"
STEP_NS = 1_000_000


class Script:
    """Events, a millisecond apart unless told otherwise. Everything is acknowledged and read back unless told.

    It begins with ``sent``, acknowledged at offsets from 0 on.
    """

    def __init__(
        self, *, nemeses: Sequence[str] = ("calm",), nodes: Sequence[str] = NODES, sent: Sequence[str] = ()
    ) -> None:
        self.events: list[Event] = []
        self.now = 0
        self.add(RUN, "info", "begin", v={"nodes": list(nodes), "queues": [QUEUE], "nemeses": list(nemeses)})
        for offset, value in enumerate(sent):
            self.sent(value, offset)

    def add(self, p: int | str, kind: Type, f: str, **fields: Any) -> None:
        """One event."""
        self.now += STEP_NS
        self.events.append(Event(len(self.events), self.now, p, kind, f, **fields))

    def sent(
        self,
        value: str,
        offset: int,
        *,
        process: int = 1,
        queue: str = QUEUE,
        again: bool = False,
        pos: int | None = None,
    ) -> None:
        """A message that was acknowledged."""
        self.add(process, "invoke", "send", k=queue, v=value)
        self.add(process, "ok", "send", k=queue, v=value, o=offset, again=again, pos=pos)

    def failed(self, value: str, process: int, outcome: Type = "fail") -> None:
        """A message that was refused, or of which nobody knows."""
        self.add(process, "invoke", "send", k=QUEUE, v=value)
        self.add(process, outcome, "send", k=QUEUE, v=value, err="said so")

    def received(self, value: str, offset: int, *, process: int = 50) -> None:
        """A message that a consumer was handed."""
        self.add(process, "ok", "receive", k=QUEUE, o=offset, v=value)

    def read(self, values: Mapping[int, str], *, process: int = 60, node: str = "n0") -> None:
        """Messages that were read at a replica."""
        self.add(process, "invoke", "read", k=QUEUE, n=node, o=next(iter(values)))
        self.add(process, "ok", "read", k=QUEUE, n=node, v=[[o, v] for o, v in values.items()])

    def end(self, offset: int, *, process: int = 70, node: str = "n0", name: str = "end") -> None:
        """A replica said where the queue ends, or where it knows that it does."""
        self.add(process, "invoke", name, k=QUEUE, n=node)
        self.add(process, "ok", name, k=QUEUE, n=node, o=offset)

    def fault(
        self,
        kind: str,
        *,
        seen: str | None = "saw it",
        majority: bool = True,
        during: Sequence[str] = (),
        seconds: float = 0.0,
    ) -> None:
        """A fault, lasting longer by ``seconds``, and messages from offset 900 on acknowledged while it is in force."""
        number = len(self.events)
        what = {"id": number, "kind": kind, "what": f"{kind} n0", "nodes": ["n0"], "majority": majority}
        self.add(NEMESIS, "info", "begins", v=what)
        if seen is not None:
            self.add(NEMESIS, "info", "confirmed", v={"id": number, "seen": seen})
        for offset, value in enumerate(during, 900):
            self.sent(value, offset)
        self.now += int(seconds * 1e9)
        self.add(NEMESIS, "info", "ends", v={"id": number})

    def final(
        self, values: Sequence[str], *, node: str, crc: int = 7, complete: bool = True, first: int = 0, base: int = 0
    ) -> None:
        """The final read of one replica, from offset ``first`` on; its log begins at ``base``."""
        records = [[offset, value, crc] for offset, value in enumerate(values, first)]
        self.add(RUN, "info", "base", n=node, v=base)
        if first:
            self.add(91, "ok", "removed", k=QUEUE, n=node, o=first)
        self.add(90, "invoke", "final-read", k=QUEUE, n=node)
        self.add(90, "ok", "final-read", k=QUEUE, n=node, v=records)
        if complete and records:
            self.add(90, "invoke", "final-read", k=QUEUE, n=node)
            self.add(90, "ok", "final-read", k=QUEUE, n=node, v=[])

    def final_everywhere(self, values: Sequence[str], *, first: int = 0, base: int = 0) -> None:
        """All replicas have the same."""
        for node in NODES:
            self.final(values, node=node, first=first, base=base)

    def history(self) -> History:
        """What it is for a checker; the run ends here."""
        self.add(RUN, "info", "end")
        return gather(self.events)
