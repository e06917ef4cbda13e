"""Rows of the page about readers, such as Spark, for which replicas keep their logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mq.console.views.text import duration, number, size
from mq.inspection.cluster import GroupStatus
from mq.inspection.cluster_queries import OfReplicas
from mq.inspection.formatting import some_of
from mq.protocol.requests.bulk import LeaseList


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A reader's lease on a replica's log. ``held`` is how much of the log retention may not delete because of it."""

    broker: str
    address: str
    reader: str
    position: str
    held: str
    ends: str


def reader_rows(lists: OfReplicas[LeaseList], groups: Sequence[GroupStatus]) -> list[ReaderRow]:
    """Return the leases of all replicas, by broker group and address."""
    ends: Mapping[str | None, int | None] = {
        each.address: each.commit_position for group in groups for each in group.replicas
    }
    rows = []
    for replica, lease_list in sorted(lists.answers.items()):
        broker, _, address = replica.rpartition(" ")
        for lease in lease_list.leases:
            end = ends.get(address)
            span = None if end is None else max(0, end - lease.position)
            rows.append(
                ReaderRow(broker, address, lease.lease_id, number(lease.position), size(span), duration(lease.seconds))
            )
    return rows


def unknown_words(lists: OfReplicas[LeaseList]) -> list[str]:
    """Name the replicas whose leases are unknown, as sentences."""
    words = []
    if lists.incapable:
        words.append(
            f"{some_of(sorted(lists.incapable), 3)} cannot say who reads: brokers of Apache RocketMQ have no bulk "
            "readers, and those of earlier releases do not tell them."
        )
    if lists.silent:
        words.append(f"{some_of(sorted(lists.silent), 3)} did not answer.")
    return words
