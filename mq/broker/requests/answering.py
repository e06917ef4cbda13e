"""How handlers answer later: once a change is replicated, or once this replica knows all that was committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mq.broker.requests.connection import ClientConnection
from mq.broker.requests.refusal import RequestRefused
from mq.broker.sending.appender import Appender
from mq.protocol.codes import ResponseCode
from mq.protocol.headers import ONEWAY_FLAG, encode_response

Read = Callable[[Callable[[bool], None]], None]
"""Calls back with True once all is applied that was committed anywhere before, or with False when nobody can tell."""


def when_current(
    read: Read, connection: ClientConnection, request: Any, serialization: int, answer: Callable[[], bytes]
) -> None:
    """Send what ``answer`` returns, or the refusal that it raises, once this replica is up to date."""

    def known(is_known: bool) -> None:
        if connection.closed:
            return
        try:
            if not is_known:
                raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the group has no leader that could tell")
            reply = answer()
        except Exception as error:
            connection.refuse(request, serialization, error)
        else:
            connection.answer(request, reply)

    read(known)


def no_room(connection: ClientConnection, request: Any, serialization: int) -> Callable[[str], None]:
    """What answers a request whose command the disk has no room for; `Appender.add_command` calls it."""

    def refuse(remark: str) -> None:
        connection.refuse(request, serialization, RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark))

    return refuse


def replicate(
    appender: Appender,
    commands: Sequence[bytes],
    connection: ClientConnection,
    request: Any,
    body: bytes,
    serialization: int,
    *,
    what: str,
    check: Callable[[], None] = lambda: None,
    on_framed: Callable[[], None] | None = None,
) -> None:
    """Replicate commands and answer the request once all are applied; if this replica ceases to lead before they had
    begun, the request is served anew, by whoever leads then.

    ``what`` is for people. ``check`` raises RequestRefused if the commands were applied and had no effect.
    ``on_framed`` is of the last command, see `PendingCommand`. Raises RequestRefused if too much waits already.
    """
    appender.check_room()

    def committed(known: bool) -> None:
        if not known:
            connection.close(f"leadership was lost while {what} was being stored")
            return
        code, remark = ResponseCode.SUCCESS, None
        try:
            check()
        except RequestRefused as refused:
            code, remark = refused.code, refused.remark
        if not request.flag & ONEWAY_FLAG:
            connection.send(encode_response(request.opaque, code, remark=remark, serialization=serialization))

    *others, last = commands
    for command in others:
        appender.add_command(command)
    again = partial(connection.dispatch, request, body, serialization)
    appender.add_command(last, committed, again, no_room(connection, request, serialization), on_framed)
