"""Chooses the targets of faults, and records the faults in the history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from jepsen.deployments.cluster import Cluster
from jepsen.recorder import Recorder
from jepsen.schedule import FaultStep

CONFIRM_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Injection:
    """Injects faults into a cluster, one at a time, and reports each by calling ``say``."""

    cluster: Cluster
    recorder: Recorder
    rng: Random
    say: Callable[[str], None]
    decks: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    """The cards that `draw` has left, by name."""

    def draw(self, name: str, cards: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """Draw a card at random from the deck ``name``. Every card is drawn once before any is drawn again."""
        deck = self.decks.get(name, [])
        card = self.rng.choice([each for each in deck if each in cards] or list(cards))
        if card not in deck:
            deck = [*deck, *(each for each in cards if each not in deck)]
        self.decks[name] = [each for each in deck if each != card]
        return card

    def begin(self, step: FaultStep, nodes: tuple[str, ...]) -> int:
        """Record that a fault begins, and return the number of the fault."""
        return self._begin(step.kind, step.variant.what, nodes, f" for {step.seconds:.1f} s", step.variant.majority)

    @asynccontextmanager
    async def fault(self, kind: str, what: str, nodes: tuple[str, ...], *, majority: bool = True) -> AsyncIterator[int]:
        """Record the begin of a scenario's fault, and its end at the end of the block. Yields its number."""
        number = self._begin(kind, what, nodes, "", majority)
        yield number
        self.end(number)

    def _begin(self, kind: str, what: str, nodes: tuple[str, ...], lasts: str, majority: bool) -> int:
        description = f"{kind} {what} ({', '.join(nodes)})"
        self.say(description + lasts)
        return self.recorder.fault_begins(kind, description, nodes, majority=majority)

    def confirm(self, number: int, effect: str) -> None:
        """Record that a fault had the described effect."""
        self.say(f"  seen: {effect}")
        self.recorder.fault_confirmed(number, effect)

    def record_bug(self, node: str, did: str) -> None:
        """Record wrong behaviour of a broker that no fault excuses. The verdict is then broken."""
        self.say(f"  {node} {did}")
        self.recorder.note("misbehaved", n=node, err=did)

    def end(self, number: int) -> None:
        """Record that a fault has ended."""
        self.recorder.fault_ends(number)


CarryOut = Callable[[Injection, FaultStep, str], Awaitable[None]]
"""``carry_out(injection, step, leader)``: begins a fault, confirms it, waits, heals it."""
