"""Names, properties, tag expressions, message ids: the rules both sides must apply alike."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.protocol import names
from mq.protocol import properties as props
from mq.protocol.hashes import java_string_hash, tag_code
from mq.protocol.message_ids import (
    MessageIdInvalid,
    OffsetMessageId,
    UniqKeyGenerator,
    offset_message_id,
    parse_offset_message_id,
)
from mq.protocol.names import NameRefused, check_group, check_topic
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.properties import PropertyInvalid, check_user_properties

steady = settings(derandomize=True, deadline=None)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["T", "a-b_C9", "%RETRY%group", "ns%topic", "a|b", "T" * 120])
def test_valid_names_are_accepted(name: str) -> None:
    check_topic(name)
    check_group(name)


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a.b", "..", "a/b", "a\\b", "a\x00", "tópico", "a\n", "中", "a:b", "a*", "T" * 128],
)
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(NameRefused, match="topic"):
        check_topic(name)
    with pytest.raises(NameRefused, match="group"):
        check_group(name)


def test_every_group_can_have_a_retry_topic() -> None:
    longest = "g" * names.GROUP_BYTES_MAX
    check_group(longest)
    check_topic(names.retry_topic(longest))
    with pytest.raises(NameRefused, match="121 characters"):
        check_group(longest + "g")


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_anything", names.METADATA_TOPIC])
def test_system_topics_are_recognized(topic: str) -> None:
    assert names.is_system_topic(topic)
    assert not names.is_system_topic(f"my_{topic}")


def test_internal_topics_are_forbidden_to_senders() -> None:
    assert names.METADATA_TOPIC in names.SEND_FORBIDDEN_TOPICS
    assert names.HALF_TOPIC in names.SEND_FORBIDDEN_TOPICS
    assert names.SEND_FORBIDDEN_TOPICS.isdisjoint({"TBW102", "BenchmarkTest", names.TRACE_TOPIC})


# -- properties --------------------------------------------------------------------------------------------------------

CLEAN = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1, max_size=10)


@steady
@given(st.dictionaries(CLEAN, CLEAN))
def test_properties_survive_encoding(properties: dict[str, str]) -> None:
    text = props.encode(properties)
    assert props.decode(text) == properties
    assert props.decode(text.removesuffix("\x02")) == properties
    for name, value in properties.items():
        assert props.find(text, name) == value
        assert props.find(text.removesuffix("\x02"), name) == value


@steady
@given(st.text(alphabet="\x01\x02ab", max_size=30), st.sampled_from(["a", "b", "ab", "ba"]))
def test_find_agrees_with_decode(text: str, name: str) -> None:
    """Both see the last value of a name; broken pieces are no properties."""
    assert props.find(text, name) == props.decode(text).get(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", {}), ("\x02\x02", {}), ("a\x01", {}), ("\x01b\x02", {}), ("ab\x02", {}), ("a\x01b", {"a": "b"})],
)
def test_malformed_properties_are_dropped(text: str, expected: dict[str, str]) -> None:
    assert props.decode(text) == expected


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"TAGS": "A"}, "is reserved"),
        ({"UNIQ_KEY": "1"}, "is reserved"),
        ({"__RMQ.TRANSIENT.x": "1"}, "is reserved"),
        ({"ok": "1", "": "x"}, "no name"),
        ({"a": ""}, "no value"),
        ({"a\x01b": "x"}, "separator"),
        ({"a": "x\x02y"}, "separator"),
    ],
)
def test_user_properties_refused(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(PropertyInvalid, match=reason):
        check_user_properties(properties)


def test_user_properties_accepted() -> None:
    check_user_properties({"colour": "red", "größe": "ü 1=2"})


# -- hashes and ids ----------------------------------------------------------------------------------------------------


@steady
@given(st.text(max_size=300))
def test_java_string_hash_matches_its_definition(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    expected = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        expected = (31 * expected + (high << 8 | low)) & 0xFFFFFFFF
    assert java_string_hash(text) & 0xFFFFFFFF == expected
    assert -(2**31) <= java_string_hash(text) < 2**31
    assert tag_code(text) == java_string_hash(text)


@pytest.mark.parametrize(
    ("host", "ip"),
    [(bytes((10, 0, 0, 1)), "10.0.0.1"), (bytes.fromhex("20010db8000000000000000000000001"), "2001:db8::1")],
)
def test_offset_message_id_survives_encoding(host: bytes, ip: str) -> None:
    text = offset_message_id(host, 10911, PhysicalOffset(2**40 + 5))
    assert len(text) in (32, 56)
    assert text == text.upper()
    assert parse_offset_message_id(text) == OffsetMessageId(ip, 10911, PhysicalOffset(2**40 + 5))


@pytest.mark.parametrize("text", ["", "0A", "X" * 32, "0" * 31, "0" * 33, "0A " * 10 + "00", "0" * 57])
def test_malformed_offset_message_id_is_refused(text: str) -> None:
    with pytest.raises(MessageIdInvalid):
        parse_offset_message_id(text)


def ms(*when: int) -> int:
    return int(dt.datetime(*when, tzinfo=dt.UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


def test_unique_keys_have_the_java_layout() -> None:
    clock = [ms(2026, 3, 1) + 0xABCDE]
    keys = UniqKeyGenerator(ip="10.0.0.9", pid=0x12345, salt=0xCAFE0001, wall_clock_ms=lambda: clock[0])
    assert keys.next() == "0A0000092345CAFE0001000ABCDE0001"
    assert keys.next() == "0A0000092345CAFE0001000ABCDE0002"
    clock[0] = ms(2026, 4, 1) + 5
    assert keys.next() == "0A0000092345CAFE0001000000050003"
    clock[0] = ms(2026, 3, 31)  # the clock is set back over the end of the month
    assert keys.next()[20:28] == f"{30 * 86_400_000:08X}"
    assert len(UniqKeyGenerator(ip="::1", pid=1, salt=1, wall_clock_ms=lambda: 0).next()) == 56


def test_unique_keys_are_unique() -> None:
    now = [ms(2026, 12, 31, 23, 59, 59)]

    def clock() -> int:
        now[0] += 1
        return now[0] // 40

    keys = UniqKeyGenerator(ip="127.0.0.1", pid=1, salt=2, wall_clock_ms=clock)
    assert len({keys.next() for _ in range(70_000)}) == 70_000


@pytest.mark.parametrize(
    ("text", "queue_id"),
    [("0", 0), ("7", 7), ("2147483647", 2**31 - 1), ("007", 7)]
    + [(text, 0) for text in (None, "", "x", "-1", "1.5", " 1", "\u0663", "2147483648", "9" * 5000)],
)
def test_real_queue_id_of_a_waiting_message_is_read_from_properties(text: str | None, queue_id: int) -> None:
    assert props.real_queue_id(text) == queue_id
