"""Expressions that look into bodies."""

from __future__ import annotations

import json

import pytest

from mq.filter.sql import BodySqlFilter, SqlFilter
from mq.filter.sql_syntax import SqlError

BODY = json.dumps(
    {
        "order": {"amount": 100.5, "count": 7, "id": 9007199254740993, "kind": "new", "paid": True, "none": None},
        "items": [{"unit price": 3}, {"unit price": -2}],
    }
).encode()


@pytest.mark.parametrize(
    "expression",
    [
        "BODY('$.order.amount') > 100",
        "100 < BODY('$.order.amount')",
        "BODY('$.order.amount') = 100.5",
        "BODY('$.order.count') = 7",
        "BODY('$.order.count') BETWEEN 6.5 AND 7",
        "BODY('$.order.count') NOT BETWEEN 8 AND 9",
        "BODY('$.order.id') = 9007199254740993",
        "BODY('$.order.id') > 9007199254740992",
        "BODY('$.order.kind') IN ('new', 'changed')",
        "BODY('$.order.kind') STARTSWITH 'n'",
        "BODY('$.order.paid') = TRUE",
        "BODY('$.order.none') IS NULL",
        "BODY('$.order.missing') IS NULL",
        "BODY('$.order') IS NULL",
        "BODY('$.items[1][''unit price'']') < 0",
        "BODY('$.items[2]') IS NULL",
        "body('$.order.kind') = word",
        "word = 'new' AND BODY('$.order.count') > 1",
    ],
)
def test_body_filter_accepts_matching_expressions(expression: str) -> None:
    assert BodySqlFilter(expression).matches({"word": "new"}, BODY)


@pytest.mark.parametrize(
    "expression",
    [
        "BODY('$.order.amount') > 101",
        "BODY('$.order.kind') > 1",
        "BODY('$.order.missing') > 1",
        "BODY('$.order.missing') <> 'x'",
        "BODY('$.order.paid')",
        "BODY('$.order.id') = 9007199254740992",
        "BODY('$.order.amount') > 1 AND word = 'old'",
    ],
)
def test_body_filter_rejects_other_expressions(expression: str) -> None:
    assert not BodySqlFilter(expression).matches({"word": "new"}, BODY)


@pytest.mark.parametrize("body", [b"", b"text", b"null", b"[1]", b"\xff", b"[" * 100_000, b'{"a":', b'{"a":NaN}'])
def test_every_field_of_a_non_object_is_null(body: bytes) -> None:
    assert BodySqlFilter("BODY('$.a') IS NULL").matches({}, body)
    assert not BodySqlFilter("BODY('$.a') > 1").matches({}, body)


def test_numbers_of_many_digits_are_compared() -> None:
    BodySqlFilter("BODY('$.a') > 1").matches({}, b'{"a":' + b"1" * 5000 + b"}")


@pytest.mark.parametrize(
    "path", ["", "a.b", "$", "$.", "$.a.", "$.a[01]", "$.a[-1]", "$..a", "$.a b", "$." + "a" * 300]
)
def test_invalid_paths_are_refused(path: str) -> None:
    with pytest.raises(SqlError, match="is not a path such as"):
        BodySqlFilter(f"BODY('{path}') = 1")


def test_brokers_do_not_look_into_bodies() -> None:
    with pytest.raises(SqlError, match=r"BODY\(\.\.\.\) needs a filter server: subscribe with BodyFilter\("):
        SqlFilter("BODY('$.a') = 1")
    assert SqlFilter("BODY = 'x'").matches({"BODY": "x"}), "a property of that name"
