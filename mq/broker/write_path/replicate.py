"""How handlers of metadata changes reply: once the change is replicated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mq.broker.net.call import Call
from mq.broker.net.errors import RequestRefused
from mq.broker.write_path.appender import Appender
from mq.protocol.codes import ResponseCode


def no_room(call: Call[Any]) -> Callable[[str], None]:
    """What answers a request whose command the disk has no room for; `Appender.add_command` calls it."""

    def refuse(remark: str) -> None:
        call.refuse(RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark))

    return refuse


def replicate(
    appender: Appender,
    commands: Sequence[bytes],
    call: Call[Any],
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
            call.connection.close(f"leadership was lost while {what} was being stored")
            return
        code, remark = ResponseCode.SUCCESS, None
        try:
            check()
        except RequestRefused as refused:
            code, remark = refused.code, refused.remark
        call.answer(call.response(code, remark=remark))

    *others, last = commands
    for command in others:
        appender.add_command(command)
    appender.add_command(last, committed, call.dispatch, no_room(call), on_framed)
