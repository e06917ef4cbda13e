"""How handlers of metadata changes reply: once the change is replicated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mq.broker.net.connection import ClientConnection
from mq.broker.net.errors import RequestRefused
from mq.broker.write_path.appender import Appender
from mq.protocol.codes import ResponseCode
from mq.protocol.headers import ONEWAY_FLAG, encode_response


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
