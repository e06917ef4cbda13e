"""Sends with a property twice: stored by the last value, in the compiled form and in Python."""

from __future__ import annotations

import struct

import pytest

from mq.compiled import IS_COMPILED
from mq.protocol.hashes import tag_code
from mq.protocol.messages.records import decode_records, scan_fixed
from tests.support.model_log import HOST
from tests.support.send_paths import Connection, batched, compare, frame, properties

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")


@pytest.mark.parametrize(("first", "last", "tag"), [("A", "B", "B"), ("A", "", "A"), ("", "B", "B"), ("A", "A", "A")])
@pytest.mark.parametrize("is_batch", [False, True])
def test_repeated_properties_count_by_their_last_value(first: str, last: str, tag: str, is_batch: bool) -> None:
    text = properties(TAGS=first, UNIQ_KEY=f"{first}1") + properties(TAGS=last, UNIQ_KEY=last and f"{last}2")
    chunk = frame(batched(b"", text) * 2, i="", m="true") if is_batch else frame(i=text)
    broker = compare([chunk])
    [[_, body, _]] = broker.log.framed
    assert {code for *_, code in scan_fixed(body)} == {tag_code(tag)}
    client = Connection(HOST)
    broker.receive(client, chunk)
    broker.commit()
    assert (f"{last}2" if last else f"{first}1").encode() in client.received
    runs = b"".join(annotation for _, _, annotation in broker.log.framed)
    assert struct.pack(">q", tag_code(tag)) in runs


@pytest.mark.parametrize("last", ["B", "A", ""])
def test_repeated_tags_keep_a_send_on_the_fast_path(last: str) -> None:
    text = "UNIQ_KEY\x01K\x02TAGS\x01A\x02"
    batch = frame(batched(b"", text) * 2, m="true", i=f"WAIT\x01true\x02TAGS\x01{last}\x02")
    chunk = batch + frame(i=f"{text}TAGS\x01{last}\x02")
    broker = compare([chunk])
    assert broker.taken_plain == len(chunk)
    assert [code for _, body, _ in broker.log.framed for *_, code in scan_fixed(body)] == [tag_code(last or "A")] * 3


def test_tag_of_a_batch_overrides_tags_of_its_messages() -> None:
    messages = batched(b"", "UNIQ_KEY\x01K\x02TAGS\x01A") + batched(b"", "UNIQ_KEY\x01L\x02")
    broker = compare([frame(messages, m="true", i="TAGS\x01B\x02POP_CK\x01receipt")])
    [[_, body, _]] = broker.log.framed
    assert [message.properties["TAGS"] for message in decode_records(body)] == ["B", "B"]
    assert [code for *_, code in scan_fixed(body)] == [tag_code("B")] * 2
    assert b"POP_CK" not in body
