"""Maps the faults of OpenChaos, which tests RocketMQ, to kinds of faults here."""

from __future__ import annotations

from collections.abc import Iterable

from jepsen.schedule import KINDS, Variant

_KILLS = ("leader", "follower")
_PAUSES = ("leader", "follower")
_PARTITIONS = ("leader alone", "leader alone and without clients", "follower alone")

OPENCHAOS: dict[str, tuple[str, tuple[str, ...]]] = {
    "minor-kill": ("kill", _KILLS),
    "major-kill": ("kill", ("both followers",)),
    "random-kill": ("kill", (*_KILLS, "both followers", "all")),
    "fixed-kill": ("kill", _KILLS),
    "leader-kill": ("kill", ("leader",)),
    "minor-suspend": ("pause", _PAUSES),
    "major-suspend": ("pause", ("leader and a follower",)),
    "random-suspend": ("pause", (*_PAUSES, "leader and a follower", "all")),
    "fixed-suspend": ("pause", _PAUSES),
    "leader-suspend": ("pause", ("leader",)),
    "random-partition": ("partition", _PARTITIONS),
    "fixed-partition": ("partition", _PARTITIONS),
    "partition-majorities-ring": ("bridge", ("ring: each hears its neighbours",)),
    "bridge": ("bridge", ("two halves and a broker that hears both",)),
    "random-loss": ("packets", ("leader: loss",)),
}
"""Kind and variants of `jepsen.schedule.KINDS` by OpenChaos's name."""


def kinds_of(names: Iterable[str]) -> dict[str, tuple[Variant, ...]]:
    """Return the kinds of faults that correspond to these names of OpenChaos, with their variants."""
    variants_of: dict[str, dict[str, None]] = {}
    for name in names:
        kind, variants = OPENCHAOS[name]
        variants_of.setdefault(kind, {}).update(dict.fromkeys(variants))
    return {kind: tuple(each for each in KINDS[kind] if each.what in whats) for kind, whats in variants_of.items()}
