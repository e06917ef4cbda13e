"""Checkers: pure functions from a history to a result. They identify workloads only by the names of operations."""

from __future__ import annotations

from collections.abc import Callable

from checkers.append_log import check_log
from checkers.archived import check_archive
from checkers.assignment import check_assigned
from checkers.bulk import check_bulk
from checkers.consumer_offsets import check_offsets, check_told_offsets
from checkers.coverage import check_coverage
from checkers.delays import check_delays
from checkers.exclusive import check_exclusive
from checkers.filtered import check_filtered, check_filtered_offsets
from checkers.grpc import check_grpc
from checkers.history import History
from checkers.numbered import check_numbered
from checkers.pops import check_ordered_pops, check_pops
from checkers.queries import check_queries
from checkers.recreated import check_recreated
from checkers.registers import check_registers
from checkers.retries import check_retries
from checkers.send_order import check_order
from checkers.send_path import check_send_path
from checkers.servers import check_servers
from checkers.skipped import check_skipped
from checkers.slow_node import check_slow_node
from checkers.total_queue import check_total_queue
from checkers.transactions import check_transactions
from checkers.verdict import Result

Checker = Callable[[History], Result]

_SENDING: tuple[Checker, ...] = (check_servers, check_send_path, check_coverage)
"""The checkers of all workloads that send messages."""

CHECKERS: dict[str, tuple[Checker, ...]] = {
    "queue": (check_total_queue, check_skipped, check_told_offsets, check_log, check_order, *_SENDING),
    "filtered": (
        *(check_filtered, check_filtered_offsets, check_told_offsets, check_log, check_order),
        *_SENDING,
    ),
    "log": (check_log, check_order, *_SENDING),
    "order": (check_exclusive, check_total_queue, check_log, check_order, *_SENDING),
    "offsets": (check_offsets, check_log, check_order, *_SENDING),
    "numbered": (check_numbered, check_log, check_order, *_SENDING),
    "transactions": (check_transactions, check_assigned, check_log, check_order, *_SENDING),
    "delays": (check_delays, check_assigned, check_log, check_order, *_SENDING),
    "pop": (check_pops, check_log, check_order, *_SENDING),
    "ordered-pop": (check_ordered_pops, check_pops, check_log, check_order, *_SENDING),
    "grpc": (check_grpc, check_pops, check_log, check_order, *_SENDING),
    # Messages of lite topics are read by the broker, and do not take the compiled path.
    "lite": (check_ordered_pops, check_pops, check_log, check_order, check_servers, check_coverage),
    "retries": (check_retries, check_log, check_order, *_SENDING),
    "register": (check_registers, check_servers, check_coverage),
    "late-ends": (check_transactions, check_log, check_order, check_servers, check_coverage),
    "bulk": (check_bulk, check_log, check_order, *_SENDING),
    "assigned": (check_assigned, check_log, check_order, *_SENDING),
    "queries": (check_queries, check_log, check_order, *_SENDING),
    "recreated": (check_recreated, *_SENDING),
    "archive": (check_archive, check_log, check_order, *_SENDING),
}
"""The checkers of each workload."""

OF_SCENARIOS: dict[str, tuple[Checker, ...]] = {"slow-node": (check_slow_node,)}
"""The checkers that a scenario has besides."""
