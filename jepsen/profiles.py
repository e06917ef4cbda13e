"""Lists the runs of a profile: combinations of workloads and faults, with each of them at least once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jepsen.deployments.security import BOTH
from jepsen.schedule import CALM


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a profile, with random faults or a scenario."""

    workload: str
    nemeses: tuple[str, ...]
    seconds: float
    scenario: str = ""
    quick: bool = False
    """Many short faults."""
    security: str = ""
    """Accounts, TLS or both; empty for neither."""

    @property
    def faults(self) -> str:
        """The faults and the security of the servers, as text."""
        faults = self.scenario or ", ".join(self.nemeses)
        return f"{faults}, with {self.security}" if self.security else faults


EVERYWHERE: tuple[tuple[str, ...], ...] = (("kill", "pause"), ("partition",), ("restart", "damage", "rot"))
"""Groups of faults that do not need root."""
GROUPS: tuple[tuple[str, ...], ...] = (
    ("store-gone", "store-slow", "store-rot", "store-rollback"),
    ("clients",),  # groups for few workloads come while these are available
    ("behind",),
    *EVERYWHERE,
    ("power-loss",),
    ("packets",),
    ("clock",),
    ("disk-error", "slow-disk"),
    ("members",),
    ("wrong-start", "transfer"),
    ("starve",),
    ("disk-full", "name-server"),
    ("bridge",),
    ("memory", "descriptors"),
)
"""Faults that alternate in one run; the groups cover all kinds."""
NOT_TOGETHER = frozenset({("delays", "clock"), ("retries", "clock"), ("register", "rot")})
"""A delay ends by the leader's clock: with a clock that is wrong by an hour nothing can be checked. The retry delay of
a returned message likewise. Registers are settings, not messages with properties that could rot.
"""
_OF_STORES = frozenset({"store-gone", "store-slow", "store-rot", "store-rollback"})
ONLY_TOGETHER = {
    "behind": frozenset({"log", "queue"}),
    "clients": frozenset({"queue", "grpc", "filtered"}),
    **dict.fromkeys(_OF_STORES, frozenset({"archive"})),
}
"""Kinds for some workloads only: their checkers know which messages retention removed, or they have separate
clients.
"""
_OFTEN = frozenset({CALM, "kill", "pause", "partition", "power-loss", "packets"})
_OF_PROXIES = frozenset({"clients", "kill", "pause"})
ONLY_UNDER = {
    "late-ends": _OFTEN,
    "recreated": _OFTEN - {"packets"},
    "queries": _OFTEN - {"packets"},
    "grpc": _OF_PROXIES,
    "filtered": frozenset({"clients", "kill", "pause", "partition"}),
    "lite": frozenset({"kill", "pause", "partition"}),
    "archive": _OF_STORES,
}
"""Workloads that profiles run under some kinds only: they add nothing about disks to *transactions*, *queue*, *pop* and
*ordered-pop*. Those without "packets" are left out there for want of time.
"""
SECURED = (("queue", ("kill", "partition")), ("log", ("kill", "pause")), ("transactions", ("kill", "partition")))
"""Runs in which all servers and clients have accounts and TLS."""
LONG_WORKLOAD = "log"
Played = tuple[str, tuple[str, ...], str]
"""A scenario: its name, its kinds of faults, its workload."""

SMOKE, CI, NIGHTLY, RELEASE = "smoke", "ci", "nightly", "release"
PROFILES = {
    SMOKE: "at most 3 minutes: kills, pauses, partitions, restarts, damage; needs no root",
    CI: "at most 10 minutes on two quiet processors: each workload, each fault and two scenarios once",
    NIGHTLY: "2 hours: each workload under each group of faults and without any, each scenario, three long runs",
    RELEASE: "8 hours: the same, and each run takes longer",
}
"""The names of profiles and their descriptions."""

SHORT_SECONDS = 8.0
OVERHEAD_SECONDS = 19.0
"""Overhead of a run, on two idle cores: starting, draining, reading, verifying."""
BUDGET_SECONDS = {CI: 9 * 60.0, NIGHTLY: 2 * 3600.0, RELEASE: 8 * 3600.0}
CI_SCENARIOS = ("pause-kill", "helix")
LONG_SCENARIOS = ("power-loss-of-all", "helix")
"""Scenarios that run for longer: they need many rounds."""
LONG_SECONDS = {NIGHTLY: 4 * 60.0, RELEASE: 20 * 60.0}
"""Seconds of each long run, by profile; one more run has no faults and a long history."""
LONGER_SECONDS = {"helix": 7 * 60.0}
"""The least seconds of a long run, by scenario: 20 helices take that long."""


def cells(profile: str, workloads: Sequence[str], scenarios: Sequence[Played]) -> list[Cell]:
    """Return the runs of a profile in the order of their execution."""
    match profile:
        case "smoke":
            return _in_turns(workloads, EVERYWHERE, len(EVERYWHERE), SHORT_SECONDS)
        case "ci":
            count = max(len(GROUPS), len(workloads))
            seconds = _seconds_each(CI, count + len(CI_SCENARIOS))
            restricted_first = sorted(workloads, key=lambda workload: workload not in ONLY_UNDER)
            once = _in_turns(restricted_first, (*GROUPS, *EVERYWHERE, *EVERYWHERE), count, seconds)
            return once + _scenarios([each for each in scenarios if each[0] in CI_SCENARIOS], seconds, quick=True)
        case "nightly" | "release":
            pairs = [
                (workload, kinds)
                for group in ((CALM,), *GROUPS)
                for workload in workloads
                if (kinds := tuple(kind for kind in group if _together(workload, (kind,))))
            ]
            long = [each for each in scenarios if each[0] in LONG_SCENARIOS]
            short = [each for each in scenarios if each[0] not in LONG_SCENARIOS]
            at_length = LONG_SECONDS[profile]
            longest = [(each, max(at_length, LONGER_SECONDS.get(each[0], 0.0))) for each in long]
            seconds_spent = sum(each + OVERHEAD_SECONDS for each in (at_length, *(seconds for _, seconds in longest)))
            seconds = _seconds_each(profile, len(pairs) + len(short) + len(SECURED), spent_seconds=seconds_spent)
            return [
                *(Cell(*pair, seconds, quick=profile == NIGHTLY) for pair in pairs),
                *_scenarios(short, seconds),
                *(Cell(*pair, seconds, quick=profile == NIGHTLY, security=BOTH) for pair in SECURED),
                *(cell for each, seconds_each in longest for cell in _scenarios([each], seconds_each)),
                Cell(LONG_WORKLOAD, (CALM,), at_length),
            ]
        case _:
            raise ValueError(f"there is no profile {profile!r}")


def part_of(all_cells: Sequence[Cell], part: int, parts: int) -> list[Cell]:
    """Divide the cells into ``parts`` shares, and return share number ``part``, counted from 1."""
    assert 1 <= part <= parts, f"there is no part {part} of {parts}"
    return list(all_cells[part - 1 :: parts])


def _seconds_each(profile: str, count: int, *, spent_seconds: float = 0.0) -> float:
    """The seconds of faults that each run may have, if other runs take ``spent_seconds`` seconds of the budget."""
    return max(SHORT_SECONDS, ((BUDGET_SECONDS[profile] - spent_seconds) / count - OVERHEAD_SECONDS) // 1)


def _in_turns(workloads: Sequence[str], groups: Sequence[tuple[str, ...]], count: int, seconds: float) -> list[Cell]:
    """Quick runs; groups take turns, each with the longest waiting workload that it supports."""
    cells_in_turns = []
    queue = list(workloads)
    for number in range(count):
        group = groups[number % len(groups)]
        workload = next(each for each in queue if _together(each, group))
        queue.remove(workload)
        queue.append(workload)
        cells_in_turns.append(Cell(workload, group, seconds, quick=True))
    return cells_in_turns


def _together(workload: str, group: tuple[str, ...]) -> bool:
    return not any(
        (workload, kind) in NOT_TOGETHER
        or workload not in ONLY_TOGETHER.get(kind, (workload,))
        or kind not in ONLY_UNDER.get(workload, (kind,))
        for kind in group
    )


def _scenarios(scenarios: Sequence[Played], seconds: float, *, quick: bool = False) -> list[Cell]:
    return [Cell(workload, kinds, seconds, name, quick) for name, kinds, workload in scenarios]
