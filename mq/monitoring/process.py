"""Metrics that every server process has: version, memory, CPU time, and counts of log events."""

from __future__ import annotations

import datetime as dt
import gc
import os
import resource
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Final

from mq.monitoring.event_counts import LOGGED
from mq.monitoring.families import Family, Kind
from mq.monitoring.resident_memory import resident_bytes
from mq.monitoring.step_times import SCRAPES

VERSION: Final = version("raftmq")
"""The software version."""


def process_families(labels: Mapping[str, str]) -> Iterator[Family]:
    """Yield the metrics of this process, with these labels."""
    names, values = (*labels,), (*labels.values(),)
    yield Family(
        "raftmq_build_info", Kind.GAUGE, "1, with the version.", (*names, "version"), [((*values, VERSION), 1.0)]
    )
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime
    text = "User and system CPU time of the process."
    yield Family("process_cpu_seconds", Kind.COUNTER, text, names, [(values, seconds)])
    text = "Resident memory of the process."
    yield Family("process_resident_memory_bytes", Kind.GAUGE, text, names, [(values, resident_bytes())])
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = "Maximum number of open file descriptors."
    yield Family("process_max_fds", Kind.GAUGE, text, names, [(values, soft)])
    text = "Number of open file descriptors."
    yield Family("process_open_fds", Kind.GAUGE, text, names, [(values, _open_descriptors())])
    text = "Collections of the interpreter's garbage collector, by generation."
    collections = [((*values, str(number)), row["collections"]) for number, row in enumerate(gc.get_stats())]
    yield Family("python_gc_collections", Kind.COUNTER, text, (*names, "generation"), collections)
    elapsed, cpu = SCRAPES.longest()
    text = "The longest time in the last minute for which a request for metrics held the event loop, and CPU time."
    steps = [((*values, "elapsed"), elapsed), ((*values, "cpu"), cpu)]
    yield Family("raftmq_scrape_step_max_seconds", Kind.GAUGE, text, (*names, "clock"), steps)
    text = "Warnings and errors that were logged, by the name of the event."
    events = [((*values, *key), count) for key, count in LOGGED.counts().items()]
    yield Family("raftmq_log_events", Kind.COUNTER, text, (*names, "level", "event"), events)


def _open_descriptors() -> int:
    """The number of open file descriptors. With ten thousand connections, a list of them takes milliseconds."""
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))  # 0 before Linux 6.2


def certificate_families(labels: Mapping[str, str], valid_until: dt.datetime | None) -> Iterator[Family]:
    """Yield the metric with the expiry time of the server's certificate; no samples if it has no certificate."""
    samples = [] if valid_until is None else [((*labels.values(),), valid_until.timestamp())]
    text = "Expiry of the server certificate, in seconds since 1970; only with TLS."
    yield Family("raftmq_tls_certificate_expiry_timestamp_seconds", Kind.GAUGE, text, (*labels,), samples)
