"""The values that replicas serve at the end, for checkers that do not care about the place."""

from __future__ import annotations

from checkers.history import History, final_reads
from checkers.verdict import Findings


def served_in_the_end(history: History, findings: Findings) -> dict[str, set[str]]:
    """The values that each replica serves at the end.

    A replica that was not read to the end of every queue is left out and makes the verdict unknown: a missing value may
    only not have been read.
    """
    queues = final_reads(history)
    partly_read = {node for (node, _), found in queues.items() if not found.complete}
    served: dict[str, set[str]] = {}
    for (node, _), found in queues.items():
        if node not in partly_read:
            served.setdefault(node, set()).update(found.values.values())
    for node in history.nodes:
        if node not in served:
            findings.cannot_tell(f"{node} was not read to the end")
    return served
