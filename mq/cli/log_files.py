"""`raftmq log`: inspects a stopped node's files. Only `allow-vote`, `discard-damaged` and `fix-term` change them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, print_json, print_json_array
from mq.cli.tables import borderless_table, print_table
from raftlog.log_numbers import LogIndex, Term

if TYPE_CHECKING:
    from raftlog.segment.codec import EntryRef
    from raftlog.segment.recovery import DamagedRange
    from raftlog.segment.verify import StoppedLog

app = typer.Typer(help="Verify, print and repair the log of a stopped node.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="A broker's data directory, or the commitlog in it.", metavar="DIR")]

KINDS = {1: "normal", 2: "no-op", 3: "config"}
EXCERPT_BYTES = 48


@app.command("verify")
def verify(directory: Directory, as_json: Json = False) -> None:
    """Check every entry, and show what a start would do.

    Exit code 0: intact, or a torn end that a start cuts off. 1: damaged, to be repaired from other replicas.
    2: unusable, or in use by a running node.
    """
    from raftlog.segment.note_names import ABSTAINING
    from raftlog.segment.verify import DAMAGED_STATE, UNUSABLE

    with _open_stopped_log(directory) as log:
        report = log.report()
    abstains = report.state is not None and ABSTAINING in report.state.notes
    if as_json:
        print_json(
            {
                "directory": report.directory,
                "verdict": report.verdict,
                "node": report.state.node_id if report.state else None,
                "cluster": report.state.cluster_id if report.state else None,
                "first_index": report.first_index,
                "last_index": report.last.index if report.last else None,
                "last_term": report.last.term if report.last else None,
                "begins_at": report.state.starts_at.pos if report.state else None,
                "ends_at": report.last.pos + report.last.size if report.last else None,
                "segment_bytes": report.state.segment_bytes if report.state else None,
                "abstaining": abstains,
                "damaged": [{"position": each.pos, "size": each.end - each.pos} for each in report.ranges],
                "findings": report.findings,
            }
        )
    else:
        owner = f", node {report.state.node_id} of {report.state.cluster_id}" if report.state else ""
        print(f"{report.directory}{owner}")
        for finding in report.findings:
            print(f"  {finding}")
        if abstains:
            print(f"  only if a majority abstains forever: raftmq log allow-vote {directory} --accept-loss")
        print(report.verdict)
    if report.verdict == UNUSABLE:
        raise CommandFailed(f"{report.directory} is unusable")
    if report.verdict == DAMAGED_STATE:
        raise CommandFailed(f"{report.directory} is damaged", EXIT_FAILED)


@app.command("trust", hidden=True, deprecated=True)
@app.command("allow-vote")
def allow_vote(
    directory: Directory,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Confirm that acknowledged messages may be lost.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let a replica vote again; messages may be lost. It abstains, and acknowledged messages may be among those lost.

    For a group in which a majority abstains, and no other replica will come back. What such replicas have lost is lost
    for good then. Trust those with the highest last term and, among these, the highest last index (see verify), and no
    more of them than a majority needs.
    """
    from raftlog import RealDisk, SegmentError
    from raftlog.segment.forced_repair import trust
    from raftlog.segment.verify import DAMAGED_STATE, UNUSABLE

    with _open_stopped_log(directory) as log:
        report = log.report()
    if report.verdict == UNUSABLE:
        raise CommandFailed(f"{report.directory} is unusable")
    if report.verdict == DAMAGED_STATE:
        raise CommandFailed(f"{report.directory} is damaged: start the node, which repairs it from its peers")
    assert report.last is not None, f"{report.directory}: {report.verdict} without a last entry"
    end = f"its log ends with entry {report.last.index} of term {report.last.term}"
    if not accept_loss:
        raise CommandFailed(
            f"{report.directory}: {end}. Entries that this replica acknowledged and lost may exist nowhere else: "
            "confirm with --accept-loss"
        )
    try:
        was_abstaining = trust(RealDisk(), report.directory)
    except SegmentError as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        last = {"last_index": report.last.index, "last_term": report.last.term}
        print_json({"directory": report.directory, "was_abstaining": was_abstaining, **last})
        return
    print(f"{report.directory}: {end}; {'it votes again' if was_abstaining else 'it does not abstain, no change'}")


@app.command("cut", hidden=True, deprecated=True)
@app.command("discard-damaged")
def discard_damaged(
    directory: Directory,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Confirm that acknowledged messages may be lost.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Discard all entries after the first damage. Intact ones are discarded, too.

    For a group in which every replica is damaged at the same place, or for a replica that has no peers: a start
    repairs all other damage. Copy the directory first: what is given up is overwritten. The replica abstains then until
    it has caught up or is trusted.
    """
    from raftlog import RealDisk, SegmentError
    from raftlog.segment import LogDamaged
    from raftlog.segment.forced_repair import cut
    from raftlog.segment.verify import DAMAGED_STATE

    with _open_stopped_log(directory) as log:
        report = log.report()
    where = report.directory
    if report.verdict != DAMAGED_STATE or not report.ranges:
        raise CommandFailed(f"{where} is {report.verdict}: there is no damage at which to cut it")
    first = report.ranges[0]
    if not accept_loss:
        raise CommandFailed(
            f"{where}: nothing was changed. The log would end with entry {first.before.index}, before the damage at "
            f"position {first.pos}. {_lost_behind(report.ranges)} Entries that this replica acknowledged may exist "
            "nowhere else. To accept the loss, pass --accept-loss"
        )
    try:
        end = cut(RealDisk(), LogDamaged(where, report.ranges, first.pos, report.verdict))
    except SegmentError as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        print_json({"directory": where, "end_position": end, "last_index": first.before.index, "abstaining": True})
        return
    print(f"{where}: the log ends at {end} now, and the replica abstains")


@app.command("term", hidden=True, deprecated=True)
@app.command("fix-term")
def fix_term(
    directory: Directory,
    lower: Annotated[
        bool, typer.Option("--lower", help="Lower the term to slightly above the term of the last entry.")
    ] = False,
    all_stopped: Annotated[
        bool, typer.Option("--all-stopped", help="Confirm that every node of the group is stopped.")
    ] = False,
    raise_to: Annotated[
        int | None, typer.Option("--raise-to", min=1, help="Raise the term to this one.", metavar="TERM")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a replica's term, or correct it. It prints the vote, too, and corrects an implausible term.

    Lowering: stop EVERY node of the group, lower the term of each whose term is implausible, and only then start them.
    If one of them runs meanwhile, or starts with the high term later, two leaders may be elected in one term and
    acknowledged messages be lost. Raising is always safe; a replica
    that refuses the term of its peers as implausible needs it.
    """
    from raftlog import RealDisk, SegmentError
    from raftlog.segment.forced_repair import lowered_term, set_term
    from raftlog.segment.verify import DAMAGED_STATE, UNUSABLE
    from raftlog.terms import TERM_MAX

    with _open_stopped_log(directory) as log:
        report = log.report()
    where = report.directory
    if report.verdict in (UNUSABLE, DAMAGED_STATE) or report.state is None or report.last is None:
        raise CommandFailed(f"{where} is {report.verdict}: see `raftmq log verify`")
    if lower and raise_to is not None:
        raise CommandFailed("--lower and --raise-to contradict each other")
    old, last_term = report.state.term, report.last.term
    low = lowered_term(last_term)
    is_plausible = old <= low
    summary = f"{where}: term {old}, vote {report.state.voted_for or 'for nobody'}, last entry of term {last_term}"
    new = old
    if raise_to is not None:
        if not old < raise_to < TERM_MAX:
            raise CommandFailed(f"{summary}. --raise-to {raise_to}; allowed: {old + 1} to {TERM_MAX - 1}")
        new = Term(raise_to)
    elif not is_plausible:
        _check_lowering(summary, low, lower=lower, all_stopped=all_stopped)
        new = Term(low) if lower else old
    if new != old:
        try:
            set_term(RealDisk(), where, new)
        except SegmentError as error:
            raise CommandFailed(str(error)) from error
    if as_json:
        print_json(
            {
                "directory": where,
                "term_before": old,
                "term": new,
                "voted_for_before": report.state.voted_for,
                "last_entry_term": last_term,
                "plausible": is_plausible,
                "lowered_term": low,
            }
        )
        return
    print(summary)
    if new != old:
        print(f"{where}: the term is {new} now, it was {old}")
    elif is_plausible:
        print("the term is plausible, no change is needed")
    else:
        print(f"{low} is the lowest possible term")
        print("nothing was changed; to lower it, pass --lower --all-stopped; --help says when that is safe")


def _check_lowering(reason: str, low: int, *, lower: bool, all_stopped: bool) -> None:
    """Raises CommandFailed if no term is low enough, or it was not confirmed that all nodes are stopped."""
    from raftlog.terms import TERM_MAX

    if low >= TERM_MAX:
        raise CommandFailed(f"{reason}. Entries of the log have the largest possible term. No command can change that")
    if lower and not all_stopped:
        raise CommandFailed(
            f"{reason}. Nothing was changed. Lowering a term is safe only while every node of the group is stopped, "
            "and on every node with such a term before any of them starts: confirm with --all-stopped"
        )


@app.command("dump")
def dump(
    directory: Directory,
    from_index: Annotated[int, typer.Option("--from", min=1, help="Index of the first entry.", metavar="INDEX")] = 1,
    count: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 100,
    as_json: Json = False,
    bodies: Annotated[bool, typer.Option("--bodies", help=f"The first {EXCERPT_BYTES} bytes of each body.")] = False,
) -> None:
    """Print entries, and the damaged ranges between them."""
    with _open_stopped_log(directory) as log:
        if log.state is None:
            raise CommandFailed(f"{log.directory}: no slot of the vote file is valid")
        rows = (_row(log, entry, bodies) for entry in islice(log.entries(LogIndex(from_index)), count))
        if as_json:
            print_json_array(rows)
            return
        columns = ["index", "term", "kind", "position", "size", "crc", "chain", *(["body"] if bodies else []), "note"]
        table = borderless_table(*columns, numbers=("index", "term", "position", "size"))
        for row in rows:
            table.add_row(*(str(row.get(column, "")) for column in columns))
        print_table(table)


def _lost_behind(ranges: Sequence[DamagedRange]) -> str:
    """Describe the loss if the log is cut at the first of ``ranges``."""
    intact = [each.behind.index for each in ranges if each.behind is not None]
    if not intact:
        return "No entry after the damage is known to be intact."
    more = f" (the log is damaged in {len(ranges)} places)" if len(ranges) > 1 else ""
    return f"Intact entries from index {intact[0]} on would be lost, too{more}."


@contextmanager
def _open_stopped_log(directory: Path) -> Iterator[StoppedLog]:
    from mq.broker.settings import LOG_DIRECTORY
    from raftlog import RealDisk, SegmentError
    from raftlog.segment.verify import StoppedLog

    inner = directory / LOG_DIRECTORY
    try:
        log = StoppedLog(RealDisk(), str(inner if inner.is_dir() else directory))
        try:
            yield log
        finally:
            log.close()
    except SegmentError as error:
        raise CommandFailed(str(error)) from error


def _row(log: StoppedLog, entry: EntryRef | DamagedRange, bodies: bool) -> dict[str, Any]:
    from raftlog.consensus.confchange import decode_conf
    from raftlog.segment import CONFIG
    from raftlog.segment.codec import EntryRef

    if not isinstance(entry, EntryRef):
        return {"position": entry.pos, "size": entry.end - entry.pos, "note": "damaged"}
    row: dict[str, Any] = {
        "index": entry.index,
        "term": entry.term,
        "kind": KINDS[entry.kind],
        "position": entry.pos,
        "size": entry.size,
        "crc": f"{log.body_crc(entry):08x}",
        "chain": f"{entry.chain:08x}",
    }
    if entry.kind == CONFIG:
        try:
            conf = decode_conf(log.body(entry))
        except ValueError as error:
            row["note"] = str(error)
        else:
            outgoing_text = f" from {' '.join(conf.outgoing)}" if conf.outgoing else ""
            learners = f", learners {' '.join(conf.learners)}" if conf.learners else ""
            row["note"] = f"voters {' '.join(conf.voters)}{outgoing_text}{learners}"
    if bodies:
        start = log.body(entry)[:EXCERPT_BYTES]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in start)
        row["body"] = f"{start.hex(' ', 4)} {printable}"
    return row
