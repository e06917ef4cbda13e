"""Plans a batch on the driver: its messages, its partitions, and their leases. Does not use PySpark."""

from __future__ import annotations

from collections.abc import Callable

from spark.bulk_offset_survey import surveyor_of
from spark.client import Connection
from spark.filters import Narrowing, narrow_ranges
from spark.leases import LEASE_ANSWER_SECONDS_MAX, new_lease_id, take_leases, with_leases
from spark.options import ReadOptions
from spark.partitions import plan_partitions, resolve_bound
from spark.plan import LogRange, scan


def plan_batch(
    options: ReadOptions, narrowing: Narrowing, connect: Callable[[str, float], Connection] = Connection
) -> list[LogRange]:
    """Return the partitions of a scan up to the present ends of the queues. ``connect`` connects to an address.

    Raises PlanInvalid, Unreachable; ReadFailed if an archive cannot be read.
    """
    surveyor = surveyor_of(options, connect, detail=False, otherwise="latest-if-possible")
    survey = surveyor.survey(options.subscription)
    stops = resolve_bound(surveyor, survey, options, options.end, "ending")
    starts = resolve_bound(surveyor, survey, options, options.start, "starting")
    ranges = narrow_ranges(narrowing, scan(starts, stops, survey.ends))
    survey = surveyor.add_details(survey)
    parts = with_leases(plan_partitions(survey, ranges, options), survey, lambda _: new_lease_id())
    take_leases(parts, min(LEASE_ANSWER_SECONDS_MAX, options.fetch_timeout_ms / 1000), connect)
    if options.read_mode == "archive":
        from spark.archive_plan import ArchivePlan  # its imports need to be installed only where it is used

        with ArchivePlan(options) as archive:
            parts = archive.with_archives(parts, survey)
    return parts
