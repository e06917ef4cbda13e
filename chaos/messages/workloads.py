"""The workloads that brokers are simulated with, by name."""

from __future__ import annotations

from chaos.messages.dedup import Dedup
from chaos.messages.delay import Delay
from chaos.messages.everyday import Everyday
from chaos.messages.ordered_pop import OrderedPop
from chaos.messages.pop import Pop
from chaos.messages.scan import Scan
from chaos.messages.transactions import Transactions
from chaos.messages.workload import Workload

WORKLOADS: dict[str, type[Workload]] = {
    each.name: each for each in (Delay, Transactions, Pop, OrderedPop, Dedup, Everyday, Scan)
}
