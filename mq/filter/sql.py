"""Compiles SQL92 expressions over message properties to functions, and evaluates them.

Properties are texts, so operand types are known in advance: each operator is compiled for its operands. Logic is
three-valued, None means null. A comparison that makes no sense for a message, such as ``abc`` with 5, is an error
that ends the whole evaluation, unless an earlier operand has already decided an AND or OR; the message does not match
then. All of this follows stock brokers, whose values are Java's: a text compared with an int must be an int, and "1.0"
or "3000000000" is not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from math import copysign, inf
from typing import Any, Final

from mq.filter.body_fields import PREFIX, FieldsOfBody
from mq.filter.sql_syntax import (
    DEPTH_MAX,
    Between,
    BooleanLiteral,
    Both,
    Either,
    Equal,
    Expression,
    Field,
    In,
    IsNull,
    Like,
    Not,
    NullValue,
    Number,
    Order,
    Property,
    SqlError,
    Text,
    parse,
)
from mq.protocol import properties as props

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Any]
Logic = Callable[[Properties], bool | None]

_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LIKE: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_ORDERS = "<, <=, >, >= and BETWEEN compare numbers"


class SqlFilter:
    """A compiled expression. The constructor raises SqlError."""

    __slots__ = ("_evaluate", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._evaluate = _logic(parse(expression), 1)

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties matches."""
        try:
            return self._evaluate(properties) is True
        except _NoNumber:
            return False

    def matches_text(self, text: str) -> bool:
        """Whether a message whose properties are encoded as ``text`` matches."""
        return self.matches(props.decode(text))


class BodySqlFilter:
    """A compiled expression that may use bodies: ``BODY('$.order.amount') > 100``. The constructor raises SqlError."""

    __slots__ = ("_evaluate", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._evaluate = _logic(parse(expression, with_body=True), 1)

    def matches(self, properties: Properties, body: bytes) -> bool:
        """Whether a message with these properties and this uncompressed body matches."""
        try:
            return self._evaluate(FieldsOfBody(properties, body)) is True
        except _NoNumber:
            return False


class _NoNumber(Exception):
    """A text that is compared with a number is not a number."""


# -- logic -------------------------------------------------------------------------------------------------------------


def _logic(node: Expression, depth: int) -> Logic:
    """A node in boolean context: TRUE, FALSE or NULL."""
    if depth > DEPTH_MAX:
        raise SqlError(node.at, f"nested more than {DEPTH_MAX} levels deep")
    match node:
        case BooleanLiteral(value=value):
            return lambda properties: value
        case Property(name=name):
            # All properties are texts, and no text is TRUE, not even "true".
            return lambda properties: False if name in properties else None
        case Not(operand=operand):
            return _not(_logic(operand, depth + 1))
        case Either(operands=operands):
            return _either([_logic(operand, depth + 1) for operand in operands])
        case Both(operands=operands):
            return _both([_logic(operand, depth + 1) for operand in operands])
        case Equal():
            return _equal(node, depth + 1)
        case IsNull(operand=operand):
            read = _value(operand, depth + 1)
            return lambda properties: read(properties) is None
        case Order(operator=symbol, left=left, right=right):
            return _order(symbol, left, right, depth + 1)
        case Between():
            return _between(node, depth + 1)
        case In():
            return _in(node)
        case Like():
            return _like(node, depth + 1)
        case _:
            raise SqlError(node.at, f"{_format(node)} is not TRUE or FALSE")


def _not(operand: Logic) -> Logic:
    def evaluate(properties: Properties) -> bool | None:
        value = operand(properties)
        return None if value is None else not value

    return evaluate


def _either(operands: list[Logic]) -> Logic:
    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = False
        for operand in operands:
            value = operand(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _both(operands: list[Logic]) -> Logic:
    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = True
        for operand in operands:
            value = operand(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return evaluate


def _in(node: In) -> Logic:
    if not isinstance(node.operand, Property):
        raise SqlError(node.at, f"IN needs a property on its left, not {_format(node.operand)}")
    name, texts, is_negated = node.operand.name, node.texts, node.negated

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in texts) is not is_negated

    return evaluate


def _like(node: Like, depth: int) -> Logic:
    test, pattern, is_negated = _LIKE[node.operator], node.text, node.negated
    read = _value(node.operand, depth)

    def evaluate(properties: Properties) -> bool | None:
        value = read(properties)
        # For null and for an empty search text the result is FALSE, also with NOT.
        return isinstance(value, str) and bool(pattern) and test(value, pattern) is not is_negated

    return evaluate


# -- equality ----------------------------------------------------------------------------------------------------------


def _equal(node: Equal, depth: int) -> Logic:
    left, right = node.left, node.right
    for operand in (left, right):
        if isinstance(operand, BooleanLiteral) and operand.value is None:
            raise SqlError(operand.at, "= and <> do not compare with NULL; write IS NULL or IS NOT NULL")
    if (
        _is_literal(left)
        and _is_literal(right)
        and isinstance(left, BooleanLiteral) != isinstance(right, BooleanLiteral)
    ):
        raise SqlError(node.at, f"{_format(left)} cannot be compared with {_format(right)}")
    same = _sameness(left, right)
    left_value, right_value = _value(left, depth), _value(right, depth)

    def evaluate(properties: Properties) -> bool | None:
        left, right = left_value(properties), right_value(properties)
        if left is None:
            return True if right is None else None
        return right is not None and same(left, right)

    return evaluate


def _sameness(left: Expression, right: Expression) -> Callable[[Any, Any], bool]:
    """Whether two values, neither of which is null, are equal."""
    if _is_text(right) and not _is_text(left):
        same_swapped = _sameness(right, left)
        return lambda left, right: same_swapped(right, left)
    if isinstance(left, Number) and isinstance(right, Number):
        return _compare_wide(operator.eq, left, right)
    if isinstance(left, Number) or isinstance(right, Number):
        if not _is_text(left):
            return lambda left, right: False
        assert isinstance(right, Number), f"{right} at {right.at}"
        read = _reader(left, right)
        return lambda text, number: read(text) == number
    if _is_text(left) and not _is_text(right):
        return lambda text, truth: (text.lower() == "true") is truth
    return operator.eq


# -- order -------------------------------------------------------------------------------------------------------------


def _order(symbol: str, left: Expression, right: Expression, depth: int) -> Logic:
    for operand in (left, right):
        _check_ordered(operand)
    compare = _COMPARE[symbol]
    if isinstance(left, Property) and isinstance(right, Number):
        # By far the most frequent case.
        name, number, read = left.name, right.value, _reader(left, right)

        def evaluate_property(properties: Properties) -> bool | None:
            text = properties.get(name)
            return None if text is None else compare(read(text), number)

        return evaluate_property
    is_ordered = _comparison(compare, left, right)
    left_value, right_value = _value(left, depth), _value(right, depth)

    def evaluate(properties: Properties) -> bool | None:
        left = left_value(properties)
        if left is None:
            return None
        right = right_value(properties)
        return None if right is None else is_ordered(left, right)

    return evaluate


def _comparison(compare: Callable[[Any, Any], bool], left: Expression, right: Expression) -> Callable[[Any, Any], bool]:
    """Compares two values, neither of which is null."""
    if isinstance(left, Number) and isinstance(right, Number):
        return _compare_wide(compare, left, right)
    if isinstance(left, Number):
        read = _reader(right, left)
        return lambda number, text: compare(number, read(text))
    if isinstance(right, Number):
        read = _reader(left, right)
        return lambda text, number: compare(read(text), number)
    return lambda left, right: compare(_rank(_read_double(left)), _rank(_read_double(right)))


def _between(node: Between, depth: int) -> Logic:
    low, high = node.low, node.high
    for end in (low, high):
        if isinstance(end, BooleanLiteral) and end.value is None:
            raise SqlError(end.at, "the ends of BETWEEN cannot be NULL")
        _check_ordered(end)
    match low, high:
        case Number(literal=True), Number(literal=True) if _compare_wide(operator.gt, low, high)(low.value, high.value):
            raise SqlError(low.at, f"BETWEEN begins at {low.value}, which is above its end {high.value}")
        case _:
            pass
    if node.negated:
        return _either([_order("<", node.operand, low, depth), _order(">", node.operand, high, depth)])
    return _both([_order(">=", node.operand, low, depth), _order("<=", node.operand, high, depth)])


def _check_ordered(operand: Expression) -> None:
    if not isinstance(operand, Number | Property | NullValue):
        raise SqlError(operand.at, f"{_format(operand)} cannot be compared: {_ORDERS}")


# -- values ------------------------------------------------------------------------------------------------------------


def _value(node: Expression, depth: int) -> Evaluate:
    """A node in value context."""
    match node:
        case Property(name=name):
            return lambda properties: properties.get(name)
        case Number(value=number):
            return lambda properties: number
        case Text(value=text):
            return lambda properties: text
        case NullValue():
            return lambda properties: None
        case _:
            return _logic(node, depth)


def _is_text(node: Expression) -> bool:
    return isinstance(node, Property | Text)


def _is_literal(node: Expression) -> bool:
    return isinstance(node, Text | BooleanLiteral) or (isinstance(node, Number) and node.literal)


def _format(node: Expression) -> str:
    match node:
        case Text(value=text):
            return f"the text {text[:40]!r}"
        case Number(value=number):
            return f"the number {number}"
        case BooleanLiteral(value=value):
            return "NULL" if value is None else str(value).upper()
        case Field(name=name):
            return f"BODY('{name[len(PREFIX) :][:40]}')"
        case Property(name=name):
            return f"the property {name[:40]}"
        case NullValue():
            return "minus something that is not a number"
        case _:
            return "a condition"


def _compare_wide(compare: Callable[[Any, Any], bool], left: Number, right: Number) -> Callable[[Any, Any], bool]:
    if "double" in (left.kind, right.kind):
        return lambda left, right: compare(float(left), float(right))
    return compare


def _rank(number: float) -> tuple[bool, float, float]:
    """Orders doubles as Java does: -0.0 before 0.0, and NaN above everything else."""
    return (True, 0.0, 0.0) if number != number else (False, number, copysign(1.0, number))


# -- texts as numbers --------------------------------------------------------------------------------------------------

_INTEGER: Final = re.compile(r"[+-]?\d{1,400}")
_DOUBLE: Final = re.compile(
    r"""[\x00-\x20]* (?P<number> [+-]? (?: NaN | Infinity
        | (?P<decimal> (?: [0-9]+\.?[0-9]* | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? ) [fFdD]?
        | 0[xX] (?: [0-9a-fA-F]+\.?[0-9a-fA-F]* | \.[0-9a-fA-F]+ ) [pP][+-]?[0-9]+ [fFdD]? ) ) [\x00-\x20]*""",
    re.VERBOSE,
)


def _read_int(text: str) -> int:
    number = _read_integer(text)
    if not -(2**31) <= number < 2**31:
        raise _NoNumber
    return number


def _read_long(text: str) -> int:
    number = _read_integer(text)
    if not -(2**63) <= number < 2**63:
        raise _NoNumber
    return number


def _read_integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise _NoNumber
    return int(text)


def _read_double(text: str) -> float:
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise _NoNumber
    number = match["number"].rstrip("fFdD") if match["decimal"] else match["number"]
    if "x" in number or "X" in number:
        try:
            return float.fromhex(number.rstrip("fFdD") if number[-1] in "fFdD" else number)
        except OverflowError:
            return -inf if number[0] == "-" else inf
    return float(number)


def _read_finite(text: str) -> float:
    """Read a number for a comparison with a literal, which is finite and not 0: NaN is equivalent to infinity then."""
    number = _read_double(text)
    return number if number == number else inf


def _read_number(text: str) -> int | float:
    """A number in JSON: it has one type there, whole or not."""
    return int(text) if _INTEGER.fullmatch(text) is not None else _read_finite(text)


def _reader(text: Expression, number: Number) -> Callable[[str], int | float]:
    """The function that reads a text which is compared with a number."""
    return _read_number if isinstance(text, Field) else _READ[number.kind]


_READ: Final[dict[str, Callable[[str], int | float]]] = {
    "int": _read_int,
    "long": _read_long,
    "double": _read_finite,
}
