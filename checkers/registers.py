"""Registers written and read at any replica: each is linearizable."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from checkers.history import History, Operation
from checkers.linearizable import Access, is_linearizable
from checkers.verdict import Findings, Result

PROMISE = "what is written is read from then on, at every replica, until something else is written"


def check_registers(history: History) -> Result:
    """Check `write` and `get` per key; the initial value is None."""
    findings = Findings("register", PROMISE)
    by_key: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history.named("write", "get"):
        findings.counts[f"{operation.name}: {operation.outcome}"] += 1
        by_key[str(operation.queue)].append(operation)
    for key, operations in by_key.items():
        accesses = _accesses(operations)
        valid = is_linearizable(accesses, None)
        findings.counts["keys"] += 1
        if valid is None:
            findings.cannot_tell(f"{key}: {len(accesses)} operations are too many to be put into an order")
        elif not valid:
            findings.add("not-linearizable", f"{key}: {_first_wrong(operations)}")
    if not findings.counts["write: ok"] or not findings.counts["get: ok"]:
        findings.cannot_tell("nothing was both written and read")
    return findings.result()


def _accesses(operations: list[Operation], until: int | None = None) -> list[Access]:
    """The relevant accesses up to a time, or to the end: writes of unknown outcome whose value was never read are left
    out.
    """
    found = []
    for operation in operations:
        is_write = operation.name == "write"
        is_known = operation.outcome == "ok" and (until is None or (operation.ended or 0) <= until)
        if operation.outcome == "fail" or not (is_write or is_known) or (until is not None and operation.began > until):
            continue
        value = operation.value if is_write else operation.result
        found.append(Access(operation.began, operation.ended if is_known else None, is_write, value))
    read = {access.value for access in found if not access.is_write}
    return [access for access in found if access.ended is not None or access.value in read]


def _first_wrong(operations: list[Operation]) -> str:
    """Describe the first operation after whose end no order exists for its key."""
    ends = sorted((op for op in operations if op.outcome == "ok"), key=lambda op: op.ended or 0)
    # If some operations have no order, more operations have none either.
    at = bisect_left(ends, True, key=lambda op: is_linearizable(_accesses(operations, op.ended), None) is False)
    if at == len(ends):
        return "all operations together"
    last = ends[at]
    what = f"wrote {last.value}" if last.name == "write" else f"read {last.result}"
    seconds = (last.began - operations[0].began) / 1e9
    return f"process {last.process} {what} at {last.node}, {seconds:.3f} s after the first operation"
