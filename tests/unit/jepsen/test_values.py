"""Messages told by their values: each part that changes is noticed."""

from __future__ import annotations

import pytest

from jepsen.derived_messages import DAMAGED, body_of, new_value, properties_of, tag_of, value_of

VALUE = new_value(12, 34, 1000)


def test_message_body_contains_its_value() -> None:
    assert len(body_of(VALUE)) == 1000
    assert value_of(body_of(VALUE), properties_of(VALUE), tag_of(VALUE)) == VALUE


def test_small_size_still_holds_the_value() -> None:
    small = new_value(1, 2, 0)
    assert value_of(body_of(small), properties_of(small), tag_of(small)) == small


@pytest.mark.parametrize(
    ("body", "properties", "tag"),
    [
        (body_of(VALUE)[:-1], properties_of(VALUE), tag_of(VALUE)),
        (body_of(VALUE)[:-1] + b"?", properties_of(VALUE), tag_of(VALUE)),
        (body_of(VALUE), {}, tag_of(VALUE)),
        (body_of(VALUE), properties_of(new_value(12, 35, 1000)), tag_of(VALUE)),
        (body_of(VALUE), properties_of(VALUE), None),
        (b"", {}, None),
        (b"\xff\xfe", {}, None),
    ],
)
def test_changed_part_is_damage(body: bytes, properties: dict[str, str], tag: str | None) -> None:
    assert value_of(body, properties, tag).startswith(DAMAGED)
