"""Divides a scan into Spark partitions with their replicas, and resolves bounds to offsets.

Shared by the planning of batch and streaming queries on the driver. No PySpark here.
"""

from __future__ import annotations

from typing import Final

from spark.offset_survey import LEADER_ID, Survey, Surveyor
from spark.option_table import AtTime, AtTimes, Bound, QueueName
from spark.options import ReadOptions
from spark.plan import (
    LogRange,
    PlanInvalid,
    QueueRange,
    Splitting,
    check_same_queues,
    queue_pieces,
    replica_order,
    resolve,
    size_of,
    split_request,
    stripes,
)

MESSAGE_BYTES: Final = 1024
"""The assumed message size where partitions must not depend on actual sizes."""


def plan_partitions(
    survey: Survey,
    ranges: dict[QueueName, QueueRange],
    options: ReadOptions,
    turn: int = 0,
    *,
    repeatable: bool = False,
) -> list[LogRange]:
    """Plan the partitions of a scan, with the replicas to read from.

    Args:
        turn: selects the follower of the first partition; the next partitions rotate through the followers.
        repeatable: whether the same ranges must give the same partitions at any time. Then data from brokers that
            changes, such as sizes and the starts of log files, is not used.
    """
    splitting = Splitting(options.min_partitions, options.max_records_per_partition, options.max_bytes_per_partition)
    if repeatable:
        records_max = options.max_bytes_per_partition // MESSAGE_BYTES
        records_max = min(options.max_records_per_partition or records_max, records_max)
        splitting = Splitting(options.min_partitions, records_max, None)
    total = sum(each.message_count for each in ranges.values())
    groups: dict[tuple[str, str], list[QueueRange]] = {}
    for (topic, broker_name, _), each in ranges.items():
        groups.setdefault((topic, broker_name), []).append(each)
    parts: list[LogRange] = []
    for (topic, broker_name), members in groups.items():
        addresses = survey.routes[topic].addresses.get(broker_name, {})
        share = splitting
        if splitting.pieces is not None:
            mine = sum(each.message_count for each in members)
            share = splitting._replace(pieces=max(1, round(splitting.pieces * mine / total)))
        identity = survey.identities.get((topic, broker_name), "")
        sizes = [size_of(each, survey.ends[topic, broker_name, each.queue_id]) for each in members]
        if options.read_mode != "pull":
            places = () if repeatable else survey.places.get((topic, broker_name), ())
            pieces = [part for piece in stripes(members, places, sum(sizes), share) for part in split_request(piece)]
        else:
            pieces = queue_pieces(members, sizes, share)
        for piece in pieces:
            replicas = replica_order(addresses, LEADER_ID, options.read_from, turn + len(parts))
            if not replicas:
                raise PlanInvalid(f"broker group {broker_name} has no replica that readFrom={options.read_from} allows")
            parts.append(LogRange(topic, identity, broker_name, tuple(piece), replicas))
    return parts


def resolve_bound(
    surveyor: Surveyor, survey: Survey, options: ReadOptions, bound: Bound, side: str
) -> dict[QueueName, int]:
    """Return the offset at which each queue begins or ends; ``side`` is "starting" or "ending".

    Raises PlanInvalid for a bound that does not match the queues, Unreachable.
    """
    by_time: dict[QueueName, int | None] = {}
    name = f"{side}Offsets"
    if isinstance(bound, AtTime | AtTimes):
        name = f"{side}Timestamp" if isinstance(bound, AtTime) else f"{side}OffsetsByTimestamp"
        if isinstance(bound, AtTimes):
            check_same_queues(bound.times, survey.ends, name)
            times = dict(bound.times)
        else:
            times = dict.fromkeys(survey.ends, bound.milliseconds)
        by_time = surveyor.by_time(survey, times)
        if side == "ending" or options.no_message_at_time == "latest":
            by_time = {queue: survey.ends[queue].end if at is None else at for queue, at in by_time.items()}
    return resolve(bound, survey.ends, by_time, name)
