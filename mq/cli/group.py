"""`raftmq group`: changes the members of a running broker group, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

import msgspec
import typer

from mq.cli import group_secret
from mq.cli.client_errors import client_errors
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.group_force import force
from mq.cli.group_session import open_session
from mq.cli.group_view import table_of
from mq.cli.output import Json, print_json
from mq.cli.tables import print_table
from mq.cli.topics import NAMESRV, Namesrv
from mq.cli.upgrade_check import upgrade_check
from mq.inspection.group_session import GroupSession
from mq.protocol.requests.raft_group import GroupAnswer

app = typer.Typer(help="Show and change the members of a broker group.", no_args_is_help=True)
app.add_typer(group_secret.app, name="secret")
app.command("force")(force)
app.command("upgrade-check")(upgrade_check)

Group = Annotated[
    str | None, typer.Option("--group", help="Broker group; not needed if there is only one.", metavar="NAME")
]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Id of the member.")]
Patience = Annotated[
    float, typer.Option("--wait", help="Seconds that the new node may take to catch up.", metavar="SECONDS", min=0)
]


@app.command("status")
def status(group: Group = None, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Show the members as the leader sees them. Exit code 1 if there is no leader."""
    answer = _run(namesrv, group, lambda session: session.status())
    if as_json:
        print_json(msgspec.to_builtins(answer))
    else:
        print_table(table_of(answer.view))
    if not answer.done:
        raise typer.Exit(EXIT_FAILED)


@app.command("add")
def add(
    member: Annotated[str, typer.Argument(metavar="NODE@HOST:PORT", help="Id and replication address.")],
    voter: Annotated[bool, typer.Option("--voter", help="Promote it to a voter when it has caught up.")] = False,
    wait: Patience = 600.0,
    group: Group = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Add a learner to the group. It receives the log, and does not vote until it is promoted.

    Start the node with `raftmq broker --join`.
    """
    node, address = _member(member)
    _finish(_run(namesrv, group, lambda session: session.add(node, address, voter=voter, patience=wait)), as_json)


@app.command("promote")
def promote(node: Node, group: Group = None, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Make a learner that has caught up a voter."""
    _finish(_run(namesrv, group, lambda session: session.change("promote", node)), as_json)


@app.command("remove")
def remove(node: Node, group: Group = None, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Remove a voter or a learner. A leader first transfers leadership."""
    _finish(_run(namesrv, group, lambda session: session.remove(node)), as_json)


@app.command("replace")
def replace(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The voter to remove; it may be dead.")],
    member: Annotated[str, typer.Argument(metavar="NEW@HOST:PORT", help="Id and replication address of the new node.")],
    wait: Patience = 600.0,
    group: Group = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Replace a voter by a new node. It adds the node, waits until it has caught up, and exchanges them in one step."""
    node, address = _member(member)
    _finish(_run(namesrv, group, lambda session: session.replace(old, node, address, patience=wait)), as_json)


@app.command("transfer")
def transfer(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The new leader; default: the leader chooses.")] = "",
    group: Group = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Transfer leadership to another voter."""
    _finish(_run(namesrv, group, lambda session: session.change("transfer", node)), as_json)


def _member(text: str) -> tuple[str, str]:
    node, separator, address = text.partition("@")
    if not separator or not node or not address:
        raise CommandFailed(f"{text!r} is not NODE@HOST:PORT")
    return node, address


def _run(namesrv: str, group: str | None, operation: Callable[[GroupSession], Awaitable[GroupAnswer]]) -> GroupAnswer:
    async def main() -> GroupAnswer:
        async with open_session(namesrv, group, on_progress=partial(print, file=sys.stderr)) as session:
            return await operation(session)

    with client_errors():
        return run_trio(main)


def _finish(answer: GroupAnswer, as_json: bool) -> None:
    """Print the outcome as one line, or JSON; the exit code says whether it succeeded."""
    if as_json:
        print_json(msgspec.to_builtins(answer))
    elif answer.done:
        print(answer.text)
    if answer.done:
        return
    if not as_json:
        raise CommandFailed(f"{answer.code}: {answer.text}", EXIT_FAILED)
    raise typer.Exit(EXIT_FAILED)
