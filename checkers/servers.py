"""Traces of servers: unexpected exits, errors in their logs, logs that do not verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checkers.events import RUN
from checkers.history import History
from checkers.verdict import Findings, Result

PROMISE = (
    "no broker fails an assertion or ends by itself, damage is repaired, the group works again after each fault, "
    "and after the run all logs verify and agree"
)

MEMORY_BYTES_MAX = 300 * 1024 * 1024
"""More than any broker uses in a run: above it, memory would grow without limit."""

EXAMPLE_CHARS_MAX = 400


def check_servers(history: History) -> Result:
    """Check the run's notes about servers, one event each; see `docs/jepsen.md` for their names."""
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
        elif event.f == "misbehaved":
            findings.add("misbehaved", f"{event.n} {event.err}")
        elif event.f == "compared":
            findings.counts["logs compared byte by byte"] += 1
            for difference in event.v:
                findings.add("logs-differ", difference)
        elif event.f == "memory":
            mebibytes = event.v // (1024 * 1024)
            findings.counts["MiB of memory at most"] = max(findings.counts["MiB of memory at most"], mebibytes)
            if event.v > MEMORY_BYTES_MAX:
                findings.add("too-much-memory", f"{event.n} took {mebibytes} MiB")
        elif event.f == "not-repaired":
            findings.add("not-repaired", f"{event.n} has not brought back what was damaged: {event.v}")
        elif event.f == "not-recovered":
            findings.add("not-recovered", f"nothing was broken any more, and still {event.err}")
        elif event.f == "said":
            findings.add("error-in-log", f"{event.n}: {event.v}")
    if not findings.counts["logs compared byte by byte"]:
        findings.cannot_tell("the logs were not compared")
    for node in history.nodes:
        if node not in verified:
            findings.cannot_tell(f"the log of {node} was not verified")
    return findings.result()


def errors_in(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a broker's log that no fault explains: failed assertions and tracebacks."""
    for line in lines:
        if "Traceback (most recent call last)" in line or "AssertionError" in line:
            yield line.strip()[:EXAMPLE_CHARS_MAX]
