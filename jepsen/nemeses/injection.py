"""What every fault needs: whom it hits, and where it is written down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from jepsen.deployments.cluster import Cluster
from jepsen.recorder import Recorder
from jepsen.schedule import Step

CONFIRM_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Injection:
    """Faults are injected into a cluster, one at a time; ``say`` is told."""

    cluster: Cluster
    recorder: Recorder
    rng: Random
    say: Callable[[str], None]

    def begin(self, step: Step, nodes: tuple[str, ...]) -> int:
        """A fault begins. Returns its number."""
        return self._begin(step.kind, step.variant.what, nodes, f" for {step.seconds:.1f} s", step.variant.majority)

    @asynccontextmanager
    async def fault(self, kind: str, what: str, nodes: tuple[str, ...], *, majority: bool = True) -> AsyncIterator[int]:
        """A fault of a scenario, over when the block is; yields its number."""
        number = self._begin(kind, what, nodes, "", majority)
        yield number
        self.end(number)

    def _begin(self, kind: str, what: str, nodes: tuple[str, ...], lasts: str, majority: bool) -> int:
        described = f"{kind} {what} ({', '.join(nodes)})"
        self.say(described + lasts)
        return self.recorder.fault_begins(kind, described, nodes, majority=majority)

    def confirm(self, number: int, seen: str) -> None:
        """Its effect was seen from outside."""
        self.say(f"  seen: {seen}")
        self.recorder.fault_confirmed(number, seen)

    def misbehaved(self, node: str, did: str) -> None:
        """A broker did what it must not, whatever the fault; the verdict is broken."""
        self.say(f"  {node} {did}")
        self.recorder.note("misbehaved", n=node, err=did)

    def end(self, number: int) -> None:
        """It is over."""
        self.recorder.fault_ends(number)


CarryOut = Callable[[Injection, Step, str], Awaitable[None]]
"""``carry_out(injection, step, leader)``: begins a fault, confirms it, waits, mends it."""
