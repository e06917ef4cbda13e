"""Describes scenarios: sequences of faults in which other systems lost acknowledged messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from jepsen.nemeses.injection import Injection

Round = Callable[[Injection], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A sequence of faults.

    Attributes:
        kinds: the kinds of faults in each round.
        workload: the workload of clients, by default.
        brokers: their number.
        settings: of the brokers, besides the workload's.
        from_earlier: brokers start with the software of the earlier release.
    """

    name: str
    summary: str
    kinds: tuple[str, ...]
    round: Round
    workload: str = "log"
    brokers: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    from_earlier: bool = False
