"""Measures the cost of archiving in object storage, and the speed of reading messages and log files from it.

- ``archiving``: three replicas with a backlog; a follower archives it at 50 MB/s, while messages of 1 KiB are sent at
  10,000 a second. In one window of four its process is stopped, so that windows with and without it are neighbours.
- ``cold``: consumers read a topic from its beginning, whose messages are in the archive only. Each request to the store
  takes 20 ms longer. Beside it, the rate of a program that only reads ranges of the same objects.
- ``hot``: a producer and a consumer of new messages, while the store takes 2 s for each request, and while ten readers
  of old messages wait for it or not, in turns.
- ``join``: a new replica takes the place of a dead one, and gets the log from the archive; then another one, from
  the leader. Then a replica is restored from the archive.

Real processes and files; the store is a process, too (`jepsen.deployments.object_storage`). All share one disk and the
cores. ``python -m benchmarks.archive`` (``make bench-archive``).
"""

from __future__ import annotations

import os

from benchmarks.archive.cold_reads import measure_cold, measure_hot
from benchmarks.archive.copying import measure_archiving
from benchmarks.archive.new_replicas import measure_join
from benchmarks.suites.case_load import Measure
from benchmarks.suites.suite import Suite
from jepsen.deployments.object_storage import ENVIRONMENT

CASES: dict[str, Measure] = {
    "archiving": measure_archiving,
    "cold": measure_cold,
    "hot": measure_hot,
    "join": measure_join,
}

ARCHIVE = Suite("archive", __doc__, CASES)

if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    ARCHIVE.main()
