"""`raftmq trace`: shows the trace of one message, from producers and consumers with tracing enabled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from mq.cli.client_errors import client_errors
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json, print_json
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.admin import Admin
from mq.inspection.wording import time_of
from mq.protocol.trace import TRACE_TOPIC, ContextCode, MessageKind, MessageTrace, Sent, TracedHandling

_KINDS = {MessageKind.HALF: "half ", MessageKind.DELAY: "delayed ", MessageKind.ORDER: "ordered "}


def trace(
    message_id: Annotated[str, typer.Argument(metavar="ID")],
    topic: Annotated[str, typer.Option(help="Topic to which clients write their traces.")] = TRACE_TOPIC,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show the trace of a message: who sent and handled it, when, how long and how often.

    Exit code 1 if there is no trace.
    """

    async def main() -> MessageTrace:
        async with Admin(namesrv) as admin:
            return await admin.trace(message_id, topic=topic)

    with client_errors():
        story = run_trio(main)
    if not story.found:
        raise CommandFailed(
            f"there is no trace of message {message_id}; clients write traces only with trace=True",
            EXIT_FAILED,
        )
    if as_json:
        print_json(msgspec.to_builtins(story))
        return
    for line in _lines(story):
        print(line)


def _lines(story: MessageTrace) -> Iterator[str]:
    """All texts are escaped for the terminal."""
    events = [(sent.timestamp_ms, _sent(sent)) for sent in story.sent]
    for ended in story.transactions:
        check = ", after a check-back of the broker" if ended.from_check else ""
        events.append((ended.timestamp_ms, f"{_name(ended.group)} ended the transaction: {_name(ended.state)}{check}"))
    for recalled in story.recalled:
        how = "recalled it" if recalled.success else "failed to recall it"
        events.append((recalled.timestamp_ms, f"{_name(recalled.group)} {how}"))
    events += [(handling.begun.timestamp_ms, _handled(handling)) for handling in story.handled]
    for timestamp_ms, text in sorted(events, key=lambda event: event[0]):
        yield f"{time_of(timestamp_ms) or f'{timestamp_ms} ms'}  {text}"
    groups = sorted({handling.begun.group for handling in story.handled})
    for group in groups:
        times = [each for each in story.handled if each.begun.group == group]
        done = sum(each.ended is not None and each.ended.success for each in times)
        yield f"{_name(group)}: handled {_times(len(times))}, {_times(done)} with success"
    if not groups:
        yield "no consumer with tracing handled it"


def _sent(sent: Sent) -> str:
    what = f"{_KINDS.get(MessageKind(sent.kind), '') if sent.kind in set(MessageKind) else ''}message"
    result = "sent" if sent.success else "failed to send"
    more = "".join(f", {name} {_name(value)}" for name, value in (("tags", sent.tags), ("keys", sent.keys)) if value)
    return (
        f"{_name(sent.group)} at {_name(sent.client_host)} {result} a {what} of {sent.body_bytes} bytes to "
        f"{_name(sent.topic)} at {_name(sent.store_host)} in {sent.cost_ms} ms{more}"
    )


def _handled(handling: TracedHandling) -> str:
    begun, ended = handling.begun, handling.ended
    attempt = f" (delivery {begun.retry_times + 1})" if begun.retry_times else ""
    if ended is None:
        result = "started to handle it, end unknown"
    elif ended.success:
        result = f"handled it in {ended.cost_ms} ms"
    else:
        code = ended.context_code
        why = ContextCode(code).name.lower() if code in set(ContextCode) else f"code {code}"
        result = f"failed to handle it in {ended.cost_ms} ms: {why}"
    return f"{_name(begun.group)} at {_name(begun.client_host)} {result}{attempt}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _name(text: str | None) -> str:
    return "unknown" if not text else "".join(each if each.isprintable() else "?" for each in text)
