"""SQL92 expressions: what is null, what compares with what, and what is refused at which position."""

from __future__ import annotations

import pytest

from mq.filter.sql import SqlFilter
from mq.filter.sql_syntax import DEPTH_MAX, LENGTH_MAX, NODES_MAX, SqlError
from mq.protocol import properties as props

MESSAGE = {"a": "5", "b": "x", "t": "true", "d": "2.5", "neg": "-3", "big": "3000000000", "q": "it's", "n": "NaN"}


def matches(expression: str, **more: str) -> bool:
    return SqlFilter(expression).matches(MESSAGE | more)


def value(expression: str) -> bool | None:
    """What an expression comes to: with IS NULL around it also null can be told from FALSE; an error is a failure."""
    if matches(expression):
        return True
    if matches(f"({expression}) IS NULL"):
        return None
    assert matches(f"NOT ({expression})"), f"{expression} ends in an error"
    return False


T, F, N = "TRUE", "FALSE", "NULL"


@pytest.mark.parametrize(
    ("left", "right", "conjunction", "disjunction"),
    [
        (T, T, True, True),
        (T, F, False, True),
        (T, N, None, True),
        (F, T, False, True),
        (F, F, False, False),
        (F, N, False, None),
        (N, T, None, True),
        (N, F, False, None),
        (N, N, None, None),
    ],
)
def test_logic_has_three_values(left: str, right: str, conjunction: bool | None, disjunction: bool | None) -> None:
    assert value(f"{left} AND {right}") is conjunction
    assert value(f"{left} OR {right}") is disjunction


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # Equality: two nulls are equal, null on the left gives null, on the right FALSE.
        ("missing = absent", True),
        ("missing = 'x'", None),
        ("'x' = missing", False),
        ("missing = 5", None),
        ("5 = missing", False),
        ("missing <> absent", False),
        ("missing <> 'x'", None),
        ("'x' <> missing", True),
        ("b = missing", False),
        ("missing = b", None),
        ("missing IS NULL", True),
        ("missing IS NOT NULL", False),
        ("b IS NULL", False),
        ("b IS NOT NULL", True),
        ("5 IS NULL", False),
        ("NULL IS NULL", True),
        ("-b IS NULL", True),
        ("(missing = 'x') IS NULL", True),
        # Order: null on either side gives null.
        ("missing > 5", None),
        ("5 > missing", None),
        ("missing < absent", None),
        ("a < missing", None),
        ("missing BETWEEN 1 AND 9", None),
        ("missing NOT BETWEEN 1 AND 9", None),
        ("a BETWEEN missing AND 9", None),
        ("a BETWEEN missing AND 4", False),
        ("a > -b", None),
        ("a > -missing", None),
        # Sets and parts of texts.
        ("missing IN ('x')", None),
        ("missing NOT IN ('x')", None),
        ("missing CONTAINS 'x'", False),
        ("missing NOT CONTAINS 'x'", False),
        ("missing STARTSWITH 'x'", False),
        ("missing NOT STARTSWITH 'x'", False),
        ("missing ENDSWITH 'x'", False),
        ("missing NOT ENDSWITH 'x'", False),
        ("b CONTAINS ''", False),
        ("b NOT CONTAINS ''", False),
        ("(a = 5) CONTAINS 'x'", False),
        # Logic.
        ("NOT NULL", None),
        ("NOT (missing = 'x')", None),
        ("NOT missing", None),
        ("missing", None),
        ("t", False),
        ("NOT t", True),
        ("t AND TRUE", False),
    ],
)
def test_null_follows_three_valued_logic(expression: str, expected: bool | None) -> None:
    assert value(expression) is expected


@pytest.mark.parametrize(
    "expression",
    [
        "a = 5",
        "a = '5'",
        "5 = a",
        "a <> 6",
        "a >= 5 AND a <= 5",
        "a > 4.5",
        "a >= .5e1",
        "d = 2.5",
        "d < a",
        "a > d",
        "neg = -3",
        "neg < 0",
        "neg = +-3",
        "neg BETWEEN -5 AND -1",
        "big > 2147483648",
        "big = 3000000000",
        "big > 1.5",
        "a BETWEEN 5 AND 5",
        "a NOT BETWEEN 6 AND 7",
        "b IN ('w', 'x')",
        "b NOT IN ('w', 'y')",
        "q = 'it''s'",
        "q CONTAINS ''''",
        "q STARTSWITH 'it' AND q ENDSWITH 's'",
        "'text' CONTAINS 'ex'",
        "b not contains 'y'",
        "t = TRUE",
        "TRUE = t",
        "b = FALSE",
        "(a = 5) = TRUE",
        "(a = 5) = (b = 'x')",
        "5 = 5.5 OR 5 < 5.5",
        "n > 1e308",
        "n = n",
        "a = 5 -- and a comment",
        "a /* five */ = /**/ 5",
        "\tb\n=\r'x'\f",
        "a=5and b='x'",
        "NOT (a = 6)",
        "a = 5L",
        "$x_1 IS NULL AND _y IS NULL",
        "TRUE OR a = 6",
        "FALSE OR TRUE AND TRUE",
        "TRUE OR TRUE AND FALSE",
        "missing = 1 OR a = 5",
    ],
)
def test_expressions_match_message(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 5.5",
        "a = 50",
        "A = 5",  # names are case-sensitive
        "b = 'X'",
        "d = 2",  # a text that is compared with an int must be one
        "d > 1",
        "big > 5",  # ... and fit
        "big = -5",
        "b > 5",
        "b < 5",
        "b > a",
        "b = 5 OR TRUE",  # an error ends everything
        "NOT (b = 5)",
        "b = 5 OR a = 5",
        "FALSE",
        "NULL",
        "a > -5L AND FALSE",
        "NOT b = 'x'",  # (NOT b) = 'x'
        "5 = 6",
        "a BETWEEN 6 AND -7",
        "a BETWEEN -6 AND -7",
        "'x' = 5",
    ],
)
def test_expressions_do_not_match_message(expression: str) -> None:
    assert not matches(expression)


@pytest.mark.parametrize("expression", ["a = 5 OR b = 5", "TRUE OR b > 5", "NOT (a = 6 AND b > 5)"])
def test_logical_operators_short_circuit(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize("text", ["+5", "5", "05", "\u0665"])
def test_valid_ints_are_parsed(text: str) -> None:
    assert matches("x = 5", x=text)


@pytest.mark.parametrize("text", [" 5", "5 ", "5.0", "5_0", "", "0x5", "5L", "--5", "5" * 5000, "2147483648"])
def test_texts_that_are_not_ints_never_match(text: str) -> None:
    assert not matches("x = 5 OR x <> 5", x=text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("2.5", "2.5"), (" 2.5\n", "2.5"), ("2.5f", "2.5"), ("25e-1D", "2.5"), ("0x1.4p1", "2.5"), (".25E1", "2.5")],
)
def test_valid_doubles_are_parsed(text: str, number: str) -> None:
    assert matches(f"x = {number}", x=text)


@pytest.mark.parametrize("text", ["2_5", "nan", "inf", "2,5", "1e", "0x1", "", "1.5x", "\u0665.0"])
def test_texts_that_are_not_doubles_never_match(text: str) -> None:
    assert not matches("x > 0.1 OR x < 0.2", x=text)


def test_doubles_are_ordered_as_in_java() -> None:
    assert matches("x > y", x="0.0", y="-0.0")
    assert matches("x > y", x="NaN", y="Infinity")
    assert not matches("x < y", x="NaN", y="1")
    assert matches("x >= y AND x <= y", x="NaN", y="NaN")
    assert matches("x > 1e308", x="0x1p99999")


def test_filter_can_use_system_properties() -> None:
    text = props.encode({"TAGS": "new", "KEYS": "k1 k2", "n": "1"})
    assert SqlFilter("TAGS = 'new' AND KEYS CONTAINS 'k2' AND n = 1").matches_text(text)
    assert not SqlFilter("TAGS = 'old'").matches_text(text)
    assert SqlFilter("x IS NULL").matches_text("")


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        # Syntax.
        ("", 1),
        ("   ", 4),
        ("a =", 4),
        ("= a", 1),
        ("a = 1 b", 7),
        ("a = 1)", 6),
        ("(a = 1", 7),
        ("()", 2),
        ("a != 1", 3),
        ("a == 1", 4),
        ("a LIKE 'x'", 3),
        ("a + 1 = 2", 3),
        ("a.b = 1", 2),
        ('a = "x"', 5),
        ("a = 'x", 5),
        ("a = 1 /* no end", 7),
        ("a = 01", 6),
        ("a AND", 6),
        ("a OR OR b", 6),
        ("a IS 5", 6),
        ("a IS NOT 5", 10),
        ("a NOT = 5", 7),
        ("a BETWEEN 1", 12),
        ("a BETWEEN 1 OR 2", 13),
        ("a IN 'x'", 6),
        ("a IN ()", 7),
        ("a IN (5)", 7),
        ("a IN ('x',)", 11),
        ("a IN (b)", 7),
        ("a CONTAINS 5", 12),
        ("a CONTAINS b", 12),
        ("NOT", 4),
        # Numbers.
        ("a = 9223372036854775808", 5),
        ("a = " + "9" * 1000, 5),
        ("a = 1e999", 5),
        ("a = 0.0", 5),
        ("a = 1e-999", 5),
        # Types.
        ("a = NULL", 5),
        ("NULL <> a", 1),
        ("a = (NULL)", 6),
        ("a > 'x'", 5),
        ("'x' <= a", 1),
        ("a < TRUE", 5),
        ("a >= NULL", 6),
        ("a > (b = 1)", 8),
        ("a > 1 > 2", 3),
        ("NOT a > 1", 1),
        ("a BETWEEN 'a' AND 'b'", 11),
        ("a BETWEEN 1 AND 'b'", 17),
        ("a BETWEEN NULL AND 5", 11),
        ("a BETWEEN 5 AND NULL", 17),
        ("a BETWEEN 5 AND 4", 11),
        ("a NOT BETWEEN 5.5 AND 5", 15),
        ("(a = 1) BETWEEN 1 AND 2", 4),
        ("5 IN ('x')", 3),
        ("(a = 1) IN ('x')", 9),
        ("TRUE = 5", 6),
        ("'x' <> FALSE", 5),
        # The whole must be a condition.
        ("5", 1),
        ("'x'", 1),
        ("-5", 1),
        ("a = 1 AND 5", 11),
        ("'x' OR a = 1", 1),
        ("NOT 5", 5),
        ("NOT -a", 5),
    ],
)
def test_sql_errors_name_the_position(expression: str, position: int) -> None:
    with pytest.raises(SqlError) as refused:
        SqlFilter(expression)
    assert refused.value.position == position, refused.value
    assert str(refused.value).startswith(f"character {position}: ")


def test_nesting_is_bounded() -> None:
    deepest = DEPTH_MAX - 1
    assert matches("(" * deepest + "a = 5" + ")" * deepest)
    for expression in (
        "(" * (DEPTH_MAX + 1) + "a = 5" + ")" * (DEPTH_MAX + 1),
        "(" * 30_000,
        "NOT " * 15_000 + "a",
        "-" * 50_000 + "5 = a",  # a comment from the second sign on is no way out
        "+" * 50_000 + "5 = a",
        "a" + " = b" * (DEPTH_MAX + 1),
        "a" + " IS NULL" * (DEPTH_MAX + 1),
        "a" + " CONTAINS 'x'" * (DEPTH_MAX + 1),
    ):
        with pytest.raises(SqlError):
            SqlFilter(expression)


def test_long_alternative_is_not_deep() -> None:
    assert matches(" OR ".join(["b = 'y'"] * 249 + ["b = 'x'"]))
    assert not matches(" AND ".join(["b = 'x'"] * 249 + ["b = 'y'"]))


def test_sibling_parentheses_do_not_add_depth() -> None:
    assert matches(" OR ".join(["(b = 'y')"] * 149 + ["(b = 'x')"]))


def test_length_and_size_are_bounded() -> None:
    with pytest.raises(SqlError, match=str(LENGTH_MAX)):
        SqlFilter("a = '" + "x" * LENGTH_MAX + "'")
    with pytest.raises(SqlError, match=str(NODES_MAX)):
        SqlFilter(" OR ".join(["b"] * (NODES_MAX + 1)))


def test_huge_list_is_searched_fast() -> None:
    texts = ",".join(f"'{number}'" for number in range(2000))
    chosen = SqlFilter(f"b IN ({texts})")
    assert chosen.matches({"b": "1999"})
    assert not chosen.matches({"b": "2000"})
    others = SqlFilter(f"b NOT IN ({texts})")
    assert others.matches({"b": "2000"})
    assert not others.matches({"b": "0"})
