"""The workloads of simulated brokers, by name."""

from __future__ import annotations

from chaos.broker_sim.archive import Archive
from chaos.broker_sim.compacted import CompactedTopic
from chaos.broker_sim.crowded import CrowdedTables
from chaos.broker_sim.dedup import Dedup
from chaos.broker_sim.delay import Delay
from chaos.broker_sim.expiring import Expiring
from chaos.broker_sim.filtered import FilteredPulls
from chaos.broker_sim.limited import LimitedSends
from chaos.broker_sim.lite import Lite
from chaos.broker_sim.mixed_workload import MixedWorkload
from chaos.broker_sim.ordered_pop import OrderedPop
from chaos.broker_sim.pop import Pop
from chaos.broker_sim.recreated import RecreatedTopic
from chaos.broker_sim.scan import Scan
from chaos.broker_sim.schedules import ScheduledMessages
from chaos.broker_sim.transactions import Transactions
from chaos.broker_sim.workload import Workload

WORKLOADS: dict[str, type[Workload]] = {
    each.name: each
    for each in (
        Delay,
        Transactions,
        Pop,
        OrderedPop,
        Dedup,
        MixedWorkload,
        Scan,
        RecreatedTopic,
        CrowdedTables,
        ScheduledMessages,
        Lite,
        Expiring,
        FilteredPulls,
        CompactedTopic,
        Archive,
        LimitedSends,
    )
}
