"""The workloads that clients of a run carry out. Workloads and checkers share only the history."""

from __future__ import annotations

from jepsen.workloads.archive import ArchiveWorkload
from jepsen.workloads.assigned import AssignedWorkload
from jepsen.workloads.bulk import BulkWorkload
from jepsen.workloads.delays import DelaysWorkload
from jepsen.workloads.filtered import FilteredWorkload
from jepsen.workloads.grpc import GrpcWorkload
from jepsen.workloads.late_ends import LateEndsWorkload
from jepsen.workloads.lite import LiteWorkload
from jepsen.workloads.log import LogWorkload
from jepsen.workloads.numbered import NumberedWorkload
from jepsen.workloads.offsets import OffsetsWorkload
from jepsen.workloads.order import OrderWorkload
from jepsen.workloads.pop import OrderedPopWorkload, PopWorkload
from jepsen.workloads.queries import QueriesWorkload
from jepsen.workloads.queue import QueueWorkload
from jepsen.workloads.recreated import RecreatedWorkload
from jepsen.workloads.register import RegisterWorkload
from jepsen.workloads.retries import RetriesWorkload
from jepsen.workloads.transactions import TransactionsWorkload
from jepsen.workloads.workload import Workload

WORKLOADS: dict[str, type[Workload]] = {
    each.name: each
    for each in (
        QueueWorkload,
        LogWorkload,
        AssignedWorkload,
        OrderWorkload,
        OffsetsWorkload,
        NumberedWorkload,
        TransactionsWorkload,
        LateEndsWorkload,
        DelaysWorkload,
        PopWorkload,
        OrderedPopWorkload,
        GrpcWorkload,
        FilteredWorkload,
        LiteWorkload,
        RetriesWorkload,
        RegisterWorkload,
        BulkWorkload,
        RecreatedWorkload,
        QueriesWorkload,
        ArchiveWorkload,
    )
}
"""The workloads by name."""
