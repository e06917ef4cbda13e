"""Sets the clock of one broker wrong for a while, by more than any retention or delay."""

from __future__ import annotations

import trio

from jepsen.nemeses.injection import Injection
from jepsen.nemeses.shims import confirm_hits

SETTINGS = {"retention_check_seconds": "0.5", "delete_when": "-1"}
"""Settings of the brokers, by which retention looks at the files while the clock is wrong."""
YEAR_SECONDS = 365 * 86_400.0
WRONG_SECONDS = 10.0
AFTERWARDS_SECONDS = 3.0
VARIANTS = (("leader", "ahead"), ("follower", "ahead"), ("leader", "behind"))


async def wrong_for_a_while(injection: Injection) -> None:
    """Set a clock a year forward or back for ten seconds. Retention runs meanwhile and afterwards."""
    cluster = injection.cluster
    leader = await cluster.leader()
    whose, how = injection.draw("clock", VARIANTS)
    node = leader if whose == "leader" else injection.rng.choice([each for each in cluster.nodes if each != leader])
    shim = cluster.shims[node]
    async with injection.fault("clock", f"{whose} a year {how}", (node,)) as number:
        shim.order(skew_seconds=YEAR_SECONDS if how == "ahead" else -YEAR_SECONDS)
        try:
            await confirm_hits(injection, number, (node,), lambda shim: shim.wrong_times, "wrong times were told to")
            await trio.sleep(WRONG_SECONDS)
        finally:
            shim.order()
        await trio.sleep(AFTERWARDS_SECONDS)
