"""Checks that messages took the compiled send path, which carries nearly every message of real clients."""

from __future__ import annotations

from checkers.events import COMPILED, OTHERS, TLS
from checkers.history import History
from checkers.verdict import Findings, Result

PROMISE = "all of this holds for the compiled send path, which is what carries messages in production"

BY_COMPILED = "messages by the compiled send path"
"""The name of the count."""


def check_send_path(history: History) -> Result:
    """Check the brokers' own figures; a run in which no message took that path says nothing about it."""
    findings = Findings("send-path", PROMISE)
    for event in history.of_run("send-paths"):
        findings.counts[BY_COMPILED] += event.v[COMPILED]
        findings.counts["other messages and commands"] += event.v[OTHERS]
    if TLS in str(history.plan.get("security", "")):
        findings.counts["not asked for: TLS connections do not take it"] = 1
    elif not any(True for _ in history.of_run("send-paths")):
        findings.cannot_tell("the run ended before the counts of the brokers were noted")
    elif not findings.counts[BY_COMPILED]:
        findings.cannot_tell("no message took the compiled send path (python -m mq.compiled compiles it)")
    return findings.result()
