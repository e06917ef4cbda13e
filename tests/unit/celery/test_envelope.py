"""Messages of kombu as messages of a broker."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import pytest

from mq.celery.envelope import decode, encode, encode_body, encode_template, is_expired, priority_of, routing_key_of
from mq.client.message import MessageQueue, ReceivedMessage
from mq.protocol.messages.records import Host, StoredMessage
from mq.protocol.numbers import PhysicalOffset, QueueOffset

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
DAY_MS = 86_400_000


def message(eta: object = None, **properties: Any) -> dict[str, Any]:
    return {"body": "[]", "headers": {"id": "task-1", "eta": eta}, "properties": properties}


def deliver_at(eta: object) -> int | None:
    return encode(message(eta), "celery", now_ms=NOW_MS, delay_max_ms=39 * DAY_MS).deliver_at_ms


def test_eta_task_waits_in_the_broker() -> None:
    assert deliver_at((NOW + dt.timedelta(seconds=90)).isoformat()) == NOW_MS + 90_000


def test_eta_in_another_time_zone() -> None:
    berlin = dt.timezone(dt.timedelta(hours=1))
    assert deliver_at((NOW + dt.timedelta(hours=2)).astimezone(berlin).isoformat()) == NOW_MS + 7_200_000


def test_eta_without_a_time_zone_is_utc() -> None:
    assert deliver_at("2026-03-01T13:00:00") == NOW_MS + 3_600_000


def test_worker_holds_an_eta_beyond_the_broker_limit_for_the_rest() -> None:
    assert deliver_at((NOW + dt.timedelta(days=400)).isoformat()) == NOW_MS + 39 * DAY_MS


@pytest.mark.parametrize("eta", [None, "2026-03-01T11:00:00+00:00", NOW.isoformat(), "tomorrow", 17, ""])
def test_message_without_a_future_eta_is_sent_at_once(eta: object) -> None:
    assert deliver_at(eta) is None


STORED_MS = NOW_MS + 365 * DAY_MS
"""By the clock of the brokers; that of the sender is a year behind."""


def received(outgoing_properties: Mapping[str, str], body: bytes = b"{}") -> ReceivedMessage:
    host = Host("127.0.0.1", 1)
    zero, first = PhysicalOffset(0), QueueOffset(0)
    record = StoredMessage(
        "T", 0, 0, first, zero, 0, 0, host, STORED_MS, host, 0, zero, body, {**outgoing_properties}, 0
    )
    return ReceivedMessage(record, MessageQueue("T", "broker-a", 0), body)


def life_ms(message: ReceivedMessage) -> int:
    """So long after its store time it expires."""
    [life] = [ms for ms in range(0, 100_000, 500) if is_expired(message, STORED_MS + ms)][:1]
    assert not is_expired(message, STORED_MS + life - 1)
    return life


def test_expiration_starts_at_the_broker_store_time() -> None:
    """A message from a sender whose clock was behind by more than its expiration was never delivered."""
    at_once = encode(message(expiration="5000"), "celery", now_ms=NOW_MS, delay_max_ms=DAY_MS)
    assert life_ms(received(at_once.properties)) == 5000
    in_an_hour = (NOW + dt.timedelta(hours=1)).isoformat()
    later = encode(message(in_an_hour, expiration="5000"), "celery", now_ms=NOW_MS, delay_max_ms=DAY_MS)
    assert life_ms(received(later.properties)) == 5000, "it is stored in its queue when it is due"
    beyond = (NOW + dt.timedelta(days=1, seconds=30)).isoformat()
    held = encode(message(beyond, expiration="5000"), "celery", now_ms=NOW_MS, delay_max_ms=DAY_MS)
    assert life_ms(received(held.properties)) == 35_000, "a worker holds it for the rest"
    assert not is_expired(received({}), 2 * STORED_MS)


def test_expiration_applies_to_redelivered_messages_and_ticks() -> None:
    at_once = encode(message(expiration="5000"), "celery", now_ms=NOW_MS, delay_max_ms=DAY_MS)
    popped_at = {"1ST_POP_TIME": str(STORED_MS - 2000)}
    assert life_ms(received({**at_once.properties, **popped_at})) == 3000
    template = encode_template(message(), "celery", expires_seconds=60.0)
    late = {"RAFTMQ_SCHEDULE": "s", "RAFTMQ_SCHEDULE_DUE": str(STORED_MS - 10_000)}
    assert life_ms(received({**template.properties, **late})) == 50_000


@pytest.mark.parametrize(
    ("priority", "level"), [(None, 0), (0, 0), (3, 3), (9, 9), (255, 9), (-1, 0), ("7", 7), ("x", 0)]
)
def test_priorities_survive_encoding(priority: object, level: int) -> None:
    outgoing = encode(message(priority=priority), "celery", now_ms=NOW_MS, delay_max_ms=DAY_MS)
    assert outgoing.priority == level
    assert priority_of(received(dict(outgoing.properties))) == level


@pytest.mark.parametrize("routing_key", ["", "celery", "worker.#", "a b\x01|%2E", "grün"])
def test_routing_keys_survive_encoding(routing_key: str) -> None:
    outgoing = encode(message(), routing_key, now_ms=NOW_MS, delay_max_ms=DAY_MS)
    assert routing_key_of(received(dict(outgoing.properties))) == routing_key


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"properties": 1}',
        b'{"properties": {"delivery_info": 5}}',
        b'{"properties": {}, "headers": [1]}',
        b'{"properties": {}, "headers": null}',
        b'{"properties": {}, "body": 5}',
        b'{"properties": {"body_encoding": "zip"}, "body": "x"}',
        b'{"properties": {"body_encoding": 3}, "body": "x"}',
        b'{"properties": {"body_encoding": "base64"}, "body": "x"}',
        b'{"properties": {}, "body": {"__type__": "datetime", "__value__": 5}}',
        b"[" * 200_000,
    ],
)
def test_decoding_refuses_invalid_kombu_messages(body: bytes) -> None:
    """Else it would end every worker that gets it, one after the other."""
    with pytest.raises(ValueError, match=r"."):
        decode(received({}, body), redelivered=False)


def test_message_key_is_the_task_id() -> None:
    def keys(**properties: Any) -> tuple[str, ...]:
        return encode(message(**properties), "celery", now_ms=NOW_MS, delay_max_ms=DAY_MS).keys

    assert keys(correlation_id="task-2") == ("task-2",)
    assert keys() == ("task-1",)
    assert keys(correlation_id="two words") == ()


def test_json_bodies_are_utf8_and_others_base64() -> None:
    assert encode_body('{"a": 1}') == ('{"a": 1}', "utf-8")
    assert encode_body(b"\x80\x04") == ("gAQ=", "base64")
