"""Converts messages of kombu to messages of a broker, and back. Pure.

The body is a JSON object with everything that kombu knows of the message. What is needed before that is decoded, or by
others, is in properties.
"""

from __future__ import annotations

import base64
import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from kombu.utils.json import dumps, loads

from mq.client.message import ReceivedMessage
from mq.protocol import properties as props
from mq.protocol.requests.schedules import DUE_MS, SCHEDULE
from mq.tasks.names import escape

PRIORITY: Final = "kombu_priority"
LIFE_MS: Final = "kombu_life_ms"
"""The time until the message expires; see `is_expired`."""
ROUTING_KEY: Final = "kombu_routing_key"
TEMPLATE_ID: Final = str(uuid.UUID(int=0))
"""The id of a task that a schedule sends; each tick gets one of its own when it is received."""
_EXPIRES_HEADER: Final = "raftmq_expires_seconds"
_TICKS: Final = uuid.UUID("0c2b7a0e-8f8c-5b64-9b0e-6d1c6a2f4e11")
"""The namespace of the ids of ticks."""
PRIORITY_MAX: Final = 9
_KEY_LENGTH_MAX: Final = 255
_REASON_LENGTH_MAX: Final = 200
_SOON_MS: Final = 20
"""A task that is due within this time is sent at once."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that can be sent to any number of topics."""

    body: bytes
    properties: Mapping[str, str]
    keys: tuple[str, ...]
    priority: int
    deliver_at_ms: int | None


def encode(message: dict[str, Any], routing_key: str, *, now_ms: int, delay_max_ms: int) -> Outgoing:
    """Convert a message that `prepare_message` made. If it has an ETA, from Celery, it is delivered at that time."""
    headers, properties = message.get("headers") or {}, message["properties"]
    due_ms = _eta_ms(headers.get("eta"))
    deliver_at_ms = None if due_ms is None or due_ms <= now_ms + _SOON_MS else min(due_ms, now_ms + delay_max_ms)
    priority = _priority(properties.get("priority"))
    own = {ROUTING_KEY: escape(routing_key)} if routing_key else {}
    if priority:
        own[PRIORITY] = str(priority)
    if (expiration := properties.get("expiration")) is not None:
        held_by_worker_ms = max((due_ms or 0) - (deliver_at_ms or now_ms), 0)
        own[LIFE_MS] = str(held_by_worker_ms + int(expiration))
    key = properties.get("correlation_id") or headers.get("id")
    keys = (key,) if isinstance(key, str) and _is_word(key) else ()
    return Outgoing(dumps(message).encode(), own, keys, priority, deliver_at_ms)


def encode_template(message: dict[str, Any], routing_key: str, *, expires_seconds: float | None) -> Outgoing:
    """Make the message of a schedule from a task's message that is sent now. Equal in all processes that make it.

    What each tick has of its own, its id and when it expires, is filled in when it is received.
    """
    headers, properties = message["headers"], message["properties"]
    headers.update(id=TEMPLATE_ID, root_id=TEMPLATE_ID, origin="schedule")
    properties.update(correlation_id=TEMPLATE_ID, delivery_tag="", reply_to="")
    if expires_seconds is not None:
        headers[_EXPIRES_HEADER] = expires_seconds
    outgoing = encode(message, routing_key, now_ms=0, delay_max_ms=0)
    own = dict(outgoing.properties)
    if expires_seconds is not None:
        own[LIFE_MS] = str(int(expires_seconds * 1000))
    return Outgoing(outgoing.body, own, (), outgoing.priority, None)


def decode(message: ReceivedMessage, *, redelivered: bool) -> dict[str, Any]:
    """Convert a message for kombu, with a new delivery tag. Raises ValueError for a body that is not kombu's."""
    try:
        payload = loads(message.body)
    except Exception as error:  # whatever kombu's decoders of dates and others make of a wrong value
        raise ValueError(f"its body cannot be read: {error!r}"[:_REASON_LENGTH_MAX]) from error
    message_of_kombu = _parse(payload)
    properties = message_of_kombu["properties"]
    if SCHEDULE in message.properties:
        _fill_in(message_of_kombu, message)
    properties["delivery_tag"] = uuid.uuid4().hex
    properties.setdefault("delivery_info", {})["redelivered"] = redelivered
    return message_of_kombu


def _fill_in(message_of_kombu: dict[str, Any], message: ReceivedMessage) -> None:
    """Turn a schedule's message into the task of one tick, whose id is the same wherever it is received."""
    headers, due = message_of_kombu["headers"], message.properties.get(DUE_MS, "")
    if headers.get("id") != TEMPLATE_ID:
        return
    task_id = str(uuid.uuid5(_TICKS, f"{message.properties[SCHEDULE]}/{due}"))
    headers.update(id=task_id, root_id=task_id)
    message_of_kombu["properties"]["correlation_id"] = task_id
    seconds = headers.pop(_EXPIRES_HEADER, None)
    if isinstance(seconds, int | float) and due.isdecimal():
        expires = dt.datetime.fromtimestamp(int(due) / 1000 + seconds, dt.UTC)
        headers["expires"] = expires.isoformat()


def _parse(payload: object) -> dict[str, Any]:
    """Check and return the payload. Raises ValueError if kombu could not make a message of it."""
    if not isinstance(payload, dict) or not isinstance(properties := payload.get("properties"), dict):
        raise ValueError("it has no properties")  # noqa: TRY004 - its text is JSON, its value is wrong
    for name, value in (
        ("delivery_info", properties.get("delivery_info", {})),
        ("headers", payload.get("headers", {})),
    ):
        if not isinstance(value, dict):
            raise ValueError(f"its {name} is not an object")  # noqa: TRY004 - as above
    body, encoding = payload.get("body"), properties.get("body_encoding")
    if not isinstance(body or "", str) or encoding not in (None, "utf-8", "base64"):
        raise ValueError(f"its body is {type(body).__name__} in the encoding {str(encoding)[:20]!r}")
    if body and encoding == "base64":
        base64.b64decode(body)
    return payload


def encode_body(body: str | bytes) -> tuple[str, str]:
    """Encode a body for JSON; also returns the encoding."""
    return (body, "utf-8") if isinstance(body, str) else (base64.b64encode(body).decode(), "base64")


def priority_of(message: ReceivedMessage) -> int:
    """Return the priority of a message, 0 to 9; messages of the highest priority come first."""
    return _priority(message.properties.get(PRIORITY))


def is_expired(message: ReceivedMessage, now_ms: int) -> bool:
    """Return whether the message has expired at `now_ms`, by the brokers' clock.

    No clock of a sender or worker is used: one that is wrong by more than the life of a message would lose it. The life
    begins when the message was stored, in the queue from which it is delivered; of a tick when that was due; and of
    one that is delivered again at its first delivery.
    """
    life = message.properties.get(LIFE_MS, "")
    if not life.isdecimal():
        return False
    begin = message.properties.get(DUE_MS) or message.properties.get(props.FIRST_POP_TIME, "")
    return now_ms >= (int(begin) if begin.isdecimal() else message.record.store_timestamp_ms) + int(life)


def routing_key_of(message: ReceivedMessage) -> str:
    """Return the routing key with which the message was sent."""
    return unquote(message.properties.get(ROUTING_KEY, ""), errors="surrogatepass")


def _priority(value: object) -> int:
    try:
        return max(0, min(int(value), PRIORITY_MAX))  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError):
        return 0


def _eta_ms(eta: object) -> int | None:
    """Milliseconds since the epoch; None without an ETA, or with one that only Celery understands."""
    try:
        due = dt.datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        if not isinstance(due, dt.datetime):
            return None
        return int((due if due.tzinfo is not None else due.replace(tzinfo=dt.UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _is_word(key: str) -> bool:
    return 0 < len(key) <= _KEY_LENGTH_MAX and key.isascii() and key.isprintable() and " " not in key
