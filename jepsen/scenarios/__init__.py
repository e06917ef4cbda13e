"""Lists scenarios: sequences of faults in which other systems lost acknowledged messages. They repeat under load."""

from __future__ import annotations

from functools import partial

import trio

from jepsen.nemeses.injection import Injection
from jepsen.nemeses.processes import pause_broker
from jepsen.scenarios import (
    away,
    backup,
    damaged_files,
    early_deletion,
    membership,
    power,
    slow_node,
    upgrade,
    wrong_clock,
)
from jepsen.scenarios.scenario import Scenario

REST_SECONDS = 2.0

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "part-kill",
            "one follower is cut off; then the other loses power while the leader is cut off (NATS 2.12.1)",
            ("partition", "power-loss"),
            partial(away.away_then_power_loss, "partition", away.cut_off),
        ),
        Scenario(
            "pause-kill",
            "the same with replicas that stand still (NATS 2.12.1)",
            ("pause", "power-loss"),
            partial(away.away_then_power_loss, "pause", pause_broker),
        ),
        Scenario(
            "power-loss-of-all",
            "all replicas lose power at once, again and again (NATS 2.12.1)",
            ("power-loss",),
            power.all_at_once,
        ),
        Scenario(
            "staggered-power-loss",
            "all replicas lose power, each up to two seconds after the one before (Galera 12.1)",
            ("power-loss",),
            power.one_after_the_other,
        ),
        Scenario(
            "bit-errors",
            "bits of all closed files of a minority flip (NATS 2.12.1)",
            ("damage",),
            damaged_files.bit_errors,
        ),
        Scenario(
            "helix",
            "every replica is damaged, no two of them in the same place (TigerBeetle)",
            ("damage",),
            damaged_files.on_every_replica,
        ),
        Scenario(
            "every-file",
            "files of each kind have a flipped bit, are cut short, or are missing (nats-server#7556)",
            ("damage",),
            damaged_files.files_of_every_kind,
            settings=damaged_files.SETTINGS,
        ),
        Scenario(
            "peer-remove",
            "of five, one is cut off and one is removed, and three die within a second (nats-server#7545)",
            ("partition", "kill", "members"),
            membership.peer_remove,
            brokers=5,
        ),
        Scenario(
            "members-under-faults",
            "a fourth replica joins and one leaves, while replicas are killed and cut off",
            ("partition", "kill", "members"),
            membership.change_under_faults,
        ),
        Scenario(
            "upgrade",
            "replicas are upgraded from the earlier release and back, while others are killed and cut off",
            ("upgrade", "partition", "kill"),
            upgrade.upgrade_and_back,
            from_earlier=True,
        ),
        Scenario(
            "backup",
            "a follower is backed up twice while another one dies, and the backup is restored and compared",
            ("backup", "kill"),
            backup.backup_and_restore,
        ),
        Scenario(
            "slow-node",
            "one replica has a slow disk or a slow link: the others must be as fast as before",
            ("slow-disk", "packets"),
            slow_node.slow_node,
        ),
        Scenario(
            "wrong-clock",
            "the clock of one replica is wrong by a year for ten seconds",
            ("clock",),
            wrong_clock.wrong_for_a_while,
            settings=wrong_clock.SETTINGS,
        ),
        Scenario(
            "early-deletion",
            "a full disk makes one replica delete messages that others have; then it is asked to lead",
            ("disk-full",),
            early_deletion.full_disk_then_lead,
            workload="queue",
            settings=early_deletion.SETTINGS,
        ),
    )
}
"""The scenarios by name."""


async def play(injection: Injection, scenario: Scenario, seconds: float) -> None:
    """Repeat a scenario for ``seconds``, at least once. Raises ClusterFailed if no leader is found within a minute."""
    until = trio.current_time() + seconds
    while True:
        await injection.cluster.leader()
        await scenario.round(injection)
        await injection.cluster.leader()
        await trio.sleep(REST_SECONDS)
        if trio.current_time() >= until:
            return
