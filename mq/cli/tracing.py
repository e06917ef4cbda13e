"""`raftmq trace`: shows the trace of one message, from producers and consumers with tracing enabled."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, print_json
from mq.cli.run_with import run_with
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.inspection.formatting import time_of
from mq.inspection.tracing import trace_events, trace_summary
from mq.protocol.names import TRACE_TOPIC


def trace(
    message_id: Annotated[str, typer.Argument(metavar="ID")],
    topic: Annotated[str, typer.Option(help="Topic to which clients write their traces.")] = TRACE_TOPIC,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show who sent and handled a message, and when.

    That is its trace, with how long and how often it was handled. Exit code 1 if there is no trace.
    """

    story = run_with(Admin, namesrv, lambda admin: admin.trace(message_id, topic=topic))
    if not story.found:
        raise CommandFailed(
            f"there is no trace of message {message_id}; clients write traces only with trace=True",
            EXIT_FAILED,
        )
    if as_json:
        print_json(msgspec.to_builtins(story))
        return
    for event in trace_events(story):
        print(f"{time_of(event.at_ms) or f'{event.at_ms} ms'}  {event.text}")
    for line in trace_summary(story):
        print(line)
