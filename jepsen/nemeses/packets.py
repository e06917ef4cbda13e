"""Makes links slow, or makes them delay, lose, duplicate or reorder packets."""

from __future__ import annotations

import trio

from jepsen.deployments.netns import Networks
from jepsen.deployments.network import CLIENTS
from jepsen.deployments.packets import Shape
from jepsen.nemeses.injection import Injection
from jepsen.schedule import FaultStep, targets

SHAPES = {
    "delay": Shape(delay=0.05, jitter=0.03),
    "loss": Shape(loss=0.1),
    "duplicates": Shape(duplicate=0.3),
    "reordering": Shape(delay=0.02, reorder=0.3),
    "low rate": Shape(rate=50_000.0),
    "large packets lost": Shape(large=600),
}
LOOK_SECONDS = 1.0


async def packets(injection: Injection, step: FaultStep, leader: str) -> None:
    """Disturb all links of some brokers in both directions, also to clients. Confirmed by the switch's counts."""
    cluster = injection.cluster
    network = cluster.network
    assert isinstance(network, Networks), f"{network.backend} has no switch"
    whose, _, what = step.variant.what.partition(": ")
    nodes = targets(whose, leader, cluster.nodes, injection.rng)
    everybody = (*cluster.nodes, CLIENTS)
    links = [(one, other) for one in everybody for other in everybody if one != other and {one, other} & {*nodes}]
    number = injection.begin(step, nodes)
    shapes = dict.fromkeys(links, SHAPES[what])
    try:
        await network.shape(shapes)
        await trio.sleep(LOOK_SECONDS)
        counts = await network.shape(shapes)
        if counts:
            text = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            injection.confirm(number, f"packets within {LOOK_SECONDS:g} s: {text}")
        await trio.sleep(step.seconds)
    finally:
        with trio.CancelScope(shield=True):  # one line to a process of ours
            await network.shape({})
    injection.end(number)
