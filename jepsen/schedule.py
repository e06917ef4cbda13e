"""Draws the sequence of faults of a run from a seed, before the run begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of a fault. ``majority``: whether enough replicas remain to acknowledge messages."""

    what: str
    seconds_min: float
    seconds_max: float
    majority: bool


@dataclass(frozen=True, slots=True)
class FaultStep:
    """A rest and the fault after it, with their durations."""

    rest_seconds: float
    kind: str
    variant: Variant
    seconds: float


CALM = "calm"

KINDS: dict[str, tuple[Variant, ...]] = {
    "kill": (
        Variant("leader", 0.0, 5.0, majority=True),
        Variant("follower", 0.0, 5.0, majority=True),
        Variant("both followers", 0.0, 3.0, majority=False),
        Variant("all", 0.0, 1.0, majority=False),
        Variant("leader while it writes a checkpoint", 0.0, 3.0, majority=True),
        Variant("follower while it writes a checkpoint", 0.0, 3.0, majority=True),
    ),
    "pause": (
        Variant("leader", 4.0, 6.0, majority=True),
        Variant("leader shortly", 0.2, 2.0, majority=True),
        Variant("follower", 1.0, 5.0, majority=True),
        Variant("leader and a follower", 1.0, 5.0, majority=False),
        Variant("all", 0.5, 3.0, majority=False),
    ),
    "restart": (
        Variant("leader", 0.0, 3.0, majority=True),
        Variant("follower", 0.0, 3.0, majority=True),
        Variant("all, one after the other", 0.0, 0.5, majority=True),
    ),
    "transfer": (
        Variant("leadership", 0.5, 1.5, majority=True),
        Variant("leadership, six times in a row", 0.0, 0.3, majority=True),
        Variant("leadership to a follower that is killed", 0.5, 1.5, majority=True),
    ),
    "name-server": (
        Variant("the first", 1.0, 5.0, majority=True),
        Variant("the second", 1.0, 5.0, majority=True),
        Variant("both", 0.0, 5.0, majority=True),
    ),
    "partition": (
        Variant("leader alone", 4.0, 8.0, majority=True),
        Variant("leader alone and without clients", 4.0, 8.0, majority=True),
        Variant("follower alone", 2.0, 6.0, majority=True),
        Variant("leader and a follower apart", 3.0, 6.0, majority=True),
        Variant("leader hears nobody", 4.0, 8.0, majority=True),
        Variant("nobody hears the leader", 4.0, 8.0, majority=True),
        Variant("clients cut off from the leader", 2.0, 5.0, majority=True),
        Variant("leader cut off from the name servers", 2.0, 5.0, majority=True),
        Variant("a name server alone", 2.0, 5.0, majority=True),
    ),
    "damage": (
        Variant("one bit of a closed file", 0.0, 2.0, majority=True),
        Variant("many bits of many files", 0.0, 2.0, majority=True),
        Variant("a block of a closed file lost", 0.0, 2.0, majority=True),
        Variant("a block of a closed file written over another", 0.0, 2.0, majority=True),
        Variant("end of the newest file", 0.0, 2.0, majority=True),
        Variant("one slot of the vote file", 0.0, 2.0, majority=True),
        Variant("one bit of a closed file while the broker runs", 1.0, 3.0, majority=True),
    ),
    "rot": (Variant("property of an old message", 0.0, 1.0, majority=True),),
    "disk-full": (
        Variant("follower", 2.0, 5.0, majority=True),
        Variant("leader", 2.0, 5.0, majority=True),
    ),
    "power-loss": (
        Variant("all", 0.0, 1.0, majority=False),
        Variant("leader", 0.0, 3.0, majority=True),
        Variant("follower", 0.0, 3.0, majority=True),
        Variant("leader and a follower", 0.0, 2.0, majority=False),
    ),
    "packets": (
        Variant("all: delay", 3.0, 6.0, majority=True),
        Variant("leader: loss", 3.0, 6.0, majority=True),
        Variant("all: duplicates", 3.0, 6.0, majority=True),
        Variant("all: reordering", 3.0, 6.0, majority=True),
        Variant("leader: low rate", 3.0, 6.0, majority=True),
        Variant("follower: large packets lost", 3.0, 6.0, majority=True),
        Variant("leader: large packets lost", 3.0, 6.0, majority=True),
        Variant("follower: low rate", 3.0, 6.0, majority=True),
    ),
    "bridge": (
        Variant("two halves and a broker that hears both", 4.0, 8.0, majority=True),
        Variant("ring: each hears its neighbours", 4.0, 8.0, majority=True),
    ),
    "clock": (
        Variant("leader: steps ahead", 2.0, 5.0, majority=True),
        Variant("leader: steps back", 2.0, 5.0, majority=True),
        Variant("leader: strobes", 2.0, 5.0, majority=True),
        Variant("follower: a day ahead", 2.0, 5.0, majority=True),
        Variant("all: steps back", 2.0, 5.0, majority=True),
    ),
    "disk-error": (
        Variant("leader: syncs", 0.0, 3.0, majority=True),
        Variant("follower: writes", 0.0, 3.0, majority=True),
        Variant("leader: writes", 0.0, 3.0, majority=True),
        Variant("follower: syncs", 0.0, 3.0, majority=True),
    ),
    "slow-disk": (
        Variant("leader", 3.0, 6.0, majority=True),
        Variant("follower", 3.0, 6.0, majority=True),
        Variant("leader and a follower", 3.0, 6.0, majority=True),
        Variant("all", 3.0, 6.0, majority=True),
    ),
    "starve": (
        Variant("leader", 3.0, 6.0, majority=True),
        Variant("follower", 3.0, 6.0, majority=True),
        Variant("all", 3.0, 6.0, majority=True),
    ),
    "behind": (
        Variant("follower misses what the others remove", 0.0, 1.0, majority=True),
        Variant("follower is killed while it fetches files", 0.0, 1.0, majority=True),
    ),
    "wrong-start": (
        Variant("a second process of a broker that runs", 0.0, 1.0, majority=True),
        Variant("a second process with ports of its own", 0.0, 1.0, majority=True),
        Variant("the directory of another broker", 0.0, 1.0, majority=True),
        Variant("the directory of another cluster", 0.0, 1.0, majority=True),
        Variant("another size of files", 0.0, 1.0, majority=True),
    ),
    "members": (
        Variant("follower", 0.0, 2.0, majority=True),
        Variant("leader", 0.0, 2.0, majority=True),
        Variant("a fourth replica joins, one of them leaves", 0.0, 2.0, majority=True),
        Variant("a dead replica is replaced", 0.0, 2.0, majority=True),
        Variant("a new replica dies while it catches up", 0.0, 1.0, majority=True),
        Variant("a fourth replica joins and one leaves while others die", 0.0, 1.0, majority=True),
        Variant("follower comes back with nothing", 0.5, 2.0, majority=False),
    ),
    "clients": (
        Variant("one killed", 0.0, 3.0, majority=True),
        Variant("one paused", 1.0, 6.0, majority=True),
        Variant("all killed", 0.0, 3.0, majority=True),
        Variant("all cut off", 1.0, 4.0, majority=False),
    ),
    "memory": (
        Variant("leader", 2.0, 5.0, majority=True),
        Variant("follower", 2.0, 5.0, majority=True),
    ),
    "descriptors": (
        Variant("leader", 1.0, 4.0, majority=True),
        Variant("follower", 1.0, 4.0, majority=True),
    ),
    "store-gone": (
        Variant("for a while", 3.0, 8.0, majority=True),
        Variant("and a broker restarts", 2.0, 5.0, majority=True),
    ),
    "store-slow": (Variant("two seconds for each request", 3.0, 8.0, majority=True),),
    "store-rot": (Variant("bits of all objects", 3.0, 6.0, majority=True),),
    "store-rollback": (Variant("to an older manifest", 3.0, 6.0, majority=True),),
}
"""Kinds of faults by name, each in all its variants."""

REST_SECONDS = (1.0, 4.0)
QUICK_REST_SECONDS = (0.2, 0.6)
QUICK_SECONDS_MAX = 2.0
QUICK_ELECTION_SECONDS = 2.5
"""Seconds of faults, in a quick run, that should last until another leader is elected."""


def draw(
    rng: Random,
    wanted_kinds: Sequence[str],
    seconds: float,
    *,
    quick: bool = False,
    kinds: Mapping[str, tuple[Variant, ...]] = KINDS,
) -> list[FaultStep]:
    """Draw faults that take ``seconds`` in total, at least one of each kind; none if `CALM` is the only kind.

    All variants of a kind come before one repeats. ``quick``: many short faults, with short rests between them.
    ``kinds``: the variants of each kind.
    """
    drawn_kinds = [kind for kind in wanted_kinds if kind != CALM]
    decks: dict[str, list[Variant]] = {kind: [] for kind in drawn_kinds}
    steps: list[FaultStep] = []
    total = 0.0
    while drawn_kinds:
        for kind in rng.sample(drawn_kinds, len(drawn_kinds)):
            if not decks[kind]:
                decks[kind] = rng.sample(kinds[kind], len(kinds[kind]))
            variant = decks[kind].pop()
            rest_seconds = rng.uniform(*(QUICK_REST_SECONDS if quick else REST_SECONDS))
            step = FaultStep(rest_seconds, kind, variant, rng.uniform(*_lasts(variant, quick=quick)))
            total += step.rest_seconds + step.seconds
            if total > seconds and {each.kind for each in steps} >= set(drawn_kinds):
                return steps
            steps.append(step)
    return steps


def _lasts(variant: Variant, *, quick: bool) -> tuple[float, float]:
    """The minimum and maximum seconds of a fault."""
    if not quick:
        return variant.seconds_min, variant.seconds_max
    seconds_min = min(variant.seconds_min, QUICK_ELECTION_SECONDS)
    return seconds_min, max(seconds_min, min(variant.seconds_max, QUICK_SECONDS_MAX))


def targets(what: str, leader: str, nodes: Sequence[str], rng: Random) -> tuple[str, ...]:
    """Draw the nodes that a variant of a fault hits."""
    followers = [node for node in nodes if node != leader]
    match what:
        case "leader" | "leader shortly" | "leader while it writes a checkpoint":
            return (leader,)
        case "follower" | "follower while it writes a checkpoint":
            return (rng.choice(followers),)
        case "both followers":
            return tuple(followers)
        case "leader and a follower":
            return leader, rng.choice(followers)
        case "all":
            return tuple(nodes)
        case "all, one after the other":
            return tuple(rng.sample(nodes, len(nodes)))
        case _:
            raise ValueError(f"the fault {what!r} has no known target")


def apart(node: str, others: Sequence[str]) -> dict[str, frozenset[str]]:
    """Separate ``node`` from ``others``: map each node to the nodes from which it receives nothing."""
    return {node: frozenset(others), **{other: frozenset({node}) for other in others}}


def halves(nodes: Sequence[str]) -> dict[str, frozenset[str]]:
    """Separate the first half of the nodes from the others: map each node to those from which it receives nothing."""
    first, second = nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]
    return {node: frozenset(second if node in first else first) for node in nodes}


def bridge(nodes: Sequence[str]) -> dict[str, frozenset[str]]:
    """Separate two halves, except for the node in the middle, which receives everything and is received by all."""
    half = len(nodes) // 2
    first, second = nodes[:half], nodes[half + 1 :]
    return {node: frozenset(second if node in first else first) for node in (*first, *second)}


def ring(nodes: Sequence[str]) -> dict[str, frozenset[str]]:
    """Map each node to the nodes from which it receives nothing: each hears another majority that includes itself."""
    count = len(nodes)
    beside = count // 2 // 2
    neighbours = {
        node: {nodes[(at + by) % count] for by in range(-beside, beside + 1)} for at, node in enumerate(nodes)
    }
    return {node: frozenset(set(nodes) - neighbours[node]) for node in nodes}


def grudges(
    what: str,
    leader: str,
    nodes: Sequence[str],
    rng: Random,
    *,
    clients: str = "clients",
    name_servers: Sequence[str] = ("ns0", "ns1"),
) -> dict[str, frozenset[str]]:
    """Map each server to the servers from which it receives nothing in this variant of "partition"."""
    followers = [node for node in nodes if node != leader]

    match what:
        case "leader alone":
            return apart(leader, followers)
        case "leader alone and without clients":
            return {**apart(leader, followers), leader: frozenset({*followers, clients, *name_servers})}
        case "follower alone":
            alone = rng.choice(followers)
            return apart(alone, [node for node in nodes if node != alone])
        case "leader and a follower apart":
            return apart(leader, [rng.choice(followers)])
        case "leader hears nobody":
            return {leader: frozenset(followers)}
        case "nobody hears the leader":
            return {node: frozenset({leader}) for node in followers}
        case "clients cut off from the leader":
            return {leader: frozenset({clients})}
        case "leader cut off from the name servers":
            return apart(leader, name_servers)
        case "a name server alone":
            alone = rng.choice(name_servers)
            return apart(alone, nodes) | {alone: frozenset({*nodes, clients})}
        case "two halves and a broker that hears both":
            return bridge(rng.sample(nodes, len(nodes)))
        case "ring: each hears its neighbours":
            return ring(rng.sample(nodes, len(nodes)))
        case _:
            raise ValueError(f"the fault {what!r} has no known victims")
