"""Tag expressions, which kind of expression a subscription has, and names of filter programs."""

from __future__ import annotations

import pytest

from mq.filter.programs import PROGRAM_BYTES_MAX, ProgramInvalid, ProgramName, name_of, parse_program_name
from mq.filter.subscription import Subscription, SubscriptionError, parse_sql, parse_subscription, parse_tags
from mq.protocol.hashes import tag_code


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_all_tags_expression_matches_every_tag(expression: str) -> None:
    everything = parse_tags("T1", expression)
    assert everything.all_tags
    assert everything.expression == "*"
    assert everything.matches_tag(None)
    assert everything.matches_tag("A")
    assert everything.matches_code(0)
    assert everything.matches_code(123)


@pytest.mark.parametrize("expression", ["A||B", " A || B ", "||A||||B||", "B||A||A"])
def test_tag_expressions_are_parsed(expression: str) -> None:
    some = parse_tags("T1", expression)
    assert not some.all_tags
    assert some.tags == {"A", "B"}
    assert some.codes == {65, 66}
    assert some.matches_tag("A")
    assert not some.matches_tag("C")
    assert not some.matches_tag(None), "a message without a tag is in no list of tags"
    assert some.matches_code(65)
    assert not some.matches_code(0)


def test_tags_with_equal_codes_are_distinguished_by_the_tag() -> None:
    assert tag_code("Aa") == tag_code("BB")
    subscription = parse_tags("T1", "Aa")
    assert subscription.matches_code(tag_code("BB"))
    assert not subscription.matches_tag("BB")


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_expression_without_tags_is_refused(expression: str) -> None:
    with pytest.raises(SubscriptionError, match="names no tag"):
        parse_tags("T1", expression)


@pytest.mark.parametrize("expression_type", [None, "", "TAG"])
def test_missing_expression_type_means_tags(expression_type: str | None) -> None:
    assert parse_subscription("T1", "A", expression_type) == parse_tags("T1", "A")
    assert parse_tags("T1", "A").expression_type == "TAG"


def test_sql_subscription_accepts_every_tag() -> None:
    chosen = parse_subscription("T1", "a = 1", "SQL92")
    assert (chosen.expression, chosen.expression_type) == ("a = 1", "SQL92")
    assert chosen.all_tags
    assert chosen.matches_code(5)
    assert chosen.matches_tag("whatever")
    assert chosen.sql is not None
    assert chosen.sql.matches({"a": "1"})
    assert not chosen.sql.matches({})


@pytest.mark.parametrize("length", [10, 10_000])
def test_wrong_expression_is_refused_with_the_position(length: int) -> None:
    with pytest.raises(SubscriptionError, match=f"T1 is wrong at character {length}: "):
        parse_sql("T1", " " * (length - 1) + "=")


@pytest.mark.parametrize("expression_type", ["SQL", "sql92", "x" * 10_000])
def test_unknown_expression_types_are_refused(expression_type: str) -> None:
    with pytest.raises(SubscriptionError, match="known: TAG, SQL92") as refused:
        parse_subscription("T1", "a", expression_type)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("parsed", [parse_tags("%RETRY%g", "A"), parse_sql("%RETRY%g", "a = 1")])
def test_retry_topic_is_subscribed_without_a_filter(parsed: Subscription) -> None:
    assert parsed.all_tags
    assert parsed.sql is None
    assert parsed.matches_tag(None)


SHA = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (name_of("wasm", b"abc"), f"wasm:{SHA}"),
        (name_of("wasm", b"abc", "skip"), f"wasm:{SHA}:skip"),
        (name_of("sql", b"abc"), f"sql:{SHA}"),
        (ProgramName("java", SHA), f"java:{SHA}"),
    ],
)
def test_program_name_survives_parsing(name: ProgramName, text: str) -> None:
    assert name.text == text
    assert parse_program_name(text) == name
    assert name.is_of(b"abc")
    assert not name.is_of(b"abd")


@pytest.mark.parametrize("text", ["", "wasm", f"wat:{SHA}", f"wasm:{SHA[1:]}", f"wasm:{SHA.upper()}", f"sql:{SHA}:x"])
def test_invalid_program_names_are_refused(text: str) -> None:
    with pytest.raises(ProgramInvalid, match="is not the name of a filter program"):
        parse_program_name(text)


@pytest.mark.parametrize("content", [b"", bytes(PROGRAM_BYTES_MAX + 1)])
def test_program_has_some_bytes_and_not_too_many(content: bytes) -> None:
    with pytest.raises(ProgramInvalid, match=f"allowed: 1 to {PROGRAM_BYTES_MAX}"):
        name_of("wasm", content)
