"""Events of a client, which the application can observe, and its health in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mq.client.application_code import failure_in, is_async
from mq.client.logs import log
from mq.client.message import MessageQueue

EventKind = Literal["connected", "lost", "assigned", "revoked", "stuck", "removed", "undecodable"]


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """Something that happened to a client, such as a lost connection or a rebalance.

    `kind` is "connected" or "lost" for a connection, with the address as the `subject`; "assigned" or "revoked" for
    `queues` of the topic that is the `subject` ("revoked" when their offsets are stored, if their leaders answer);
    "stuck" for a consumer that waits for something for longer than 10 s, and again every half minute; at once if no
    name server answers, or a broker denies permission; "removed" for a consumer that an operator has removed from the
    group that is the `subject`: it gets no messages for a while, and joins again by itself; "undecodable" for a message
    of the topic that is the `subject`, and of that queue, whose body the codec cannot decode. `reason` says why.
    """

    kind: EventKind
    subject: str
    reason: str = ""
    queues: frozenset[MessageQueue] = frozenset()


OnEvent = Callable[[ClientEvent], object]
"""Called by a task of the client, which must not wait. Its exceptions are logged."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a client can work now, and the problems in words. True if there are none."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "; ".join(self.reasons) or "ok"


def check_on_event(on_event: OnEvent | None) -> OnEvent | None:
    """Return the function itself. Raises TypeError for a coroutine function, which would never run."""
    if on_event is not None and (is_async(on_event) or not callable(on_event)):
        raise TypeError(f"on_event is a plain function (def), which must not wait, not {on_event!r}")
    return on_event


def emit(on_event: OnEvent | None, event: ClientEvent) -> None:
    """Call the application's function if there is one. Raises only what ends the program."""
    if on_event is not None and (error := failure_in(on_event, event)) is not None:
        log.exception("on_event_failed", error, event_kind=event.kind)
