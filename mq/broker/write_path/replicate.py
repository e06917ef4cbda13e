"""Replicates metadata commands of requests, and answers the requests then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.state.commands import Command, encode_command
from mq.broker.state.table import CommandInvalid
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.outcome import Stored, answer_outcome
from mq.protocol.codes import ResponseCode


def encode(command: Command) -> bytes:
    """Encode a command with values from a client. Raises RequestRefused if one of them is invalid."""
    try:
        return encode_command(command)
    except CommandInvalid as error:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error


def replicate(
    appender: Appender,
    commands: Sequence[bytes],
    call: Call[Any],
    *,
    what: str,
    check: Callable[[], None] = lambda: None,
    on_framed: Callable[[], None] | None = None,
) -> None:
    """Replicate commands, and answer the request when all are applied. If leadership is lost before they are in the
    log, the new leader serves the request.

    ``what`` is for logs. ``check`` raises RequestRefused if the applied commands had no effect. ``on_framed`` belongs
    to the last command, see `PendingCommand`. Raises RequestRefused if too much is pending.
    """
    assert commands, f"{what} is no command"
    appender.check_room()

    def respond(_: Stored) -> bytes:
        try:
            check()
        except RequestRefused as error:
            return call.response(error.code, remark=error.remark)
        return call.response()

    *others, last = commands
    for command in others:
        appender.add_command(command)
    on_outcome = partial(answer_outcome, call, f"{what} was being stored", respond)
    appender.add_command(last, on_outcome, on_framed)
