"""What servers left behind: processes that ended by themselves, errors in their logs, logs that do not verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jepsen.history import RUN, History
from jepsen.verdict import Findings, Result

PROMISE = "no broker fails an assertion or ends by itself, damage is repaired, and every log verifies after the run"

EXAMPLE_CHARS_MAX = 400


def check_servers(history: History) -> Result:
    """Check what the run noted of servers: `ended`, `not-repaired`, `verified` and `said`, one event each."""
    findings = Findings("servers", PROMISE)
    verified = set()
    for event in history.events:
        if event.p != RUN:
            continue
        if event.f == "ended":
            findings.add("ended-by-itself", f"{event.n}: {event.err}")
        elif event.f == "verified":
            findings.counts["logs verified"] += 1
            verified.add(event.n)
            if event.v != "intact":
                findings.add("log-damaged", f"{event.n}: {event.v}")
        elif event.f == "not-repaired":
            findings.add("not-repaired", f"{event.n} has not brought back what was damaged: {event.v}")
        elif event.f == "said":
            findings.add("error-in-log", f"{event.n}: {event.v}")
    for node in history.nodes:
        if node not in verified:
            findings.cannot_tell(f"the log of {node} was not verified")
    return findings.result()


def errors_in(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a broker's log that no fault explains: failed assertions and tracebacks."""
    for line in lines:
        if "Traceback (most recent call last)" in line or "AssertionError" in line:
            yield line.strip()[:EXAMPLE_CHARS_MAX]
