"""Parses SQL92 expressions over message properties to syntax trees.

From the weakest binding to the strongest::

    OR    AND    = <> IS [NOT] NULL
    > >= < <= [NOT] BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH
    + - NOT    literal, identifier, ( ... )

NOT binds more tightly than a comparison: ``NOT a = 1`` is ``(NOT a) = 1``. There is no arithmetic, no LIKE, no ``!=``.
Keywords are case-insensitive, identifiers are not. Comments are ``-- ...`` to the end of the line and ``/* ... */``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

import msgspec

from mq.filter.body_fields import field_name

LENGTH_MAX: Final = 16_384
"""Characters of one expression: parsing blocks a broker for at most 30 ms."""
DEPTH_MAX: Final = 100
"""Nesting depth of parentheses and operators."""
NODES_MAX: Final = 1_000
"""Operators and operands of one expression, without the texts of IN lists, which its length limits."""

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


class SqlError(Exception):
    """The expression cannot be compiled. ``position`` counts characters from 1."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"character {position}: {reason}")
        self.position = position
        self.reason = reason


# -- the tree ----------------------------------------------------------------------------------------------------------


class Node(msgspec.Struct, frozen=True):
    """Base of all nodes. ``at`` is the position of the node's first character or operator, counted from 1."""

    at: int


class Number(Node, frozen=True):
    """A number. ``kind`` is "int", "long" or "double": a text that is compared with it is parsed as that type."""

    value: int | float
    kind: str
    literal: bool = True
    """False for one with a sign."""


class Text(Node, frozen=True):
    """A text literal."""

    value: str


class BooleanLiteral(Node, frozen=True):
    """TRUE or FALSE; None for NULL."""

    value: bool | None


class Property(Node, frozen=True):
    """The value of a message property: a text, or null if the message lacks it."""

    name: str


class Field(Property, frozen=True):
    """A value in a JSON body: its text, or null. ``name`` is the name under which `FieldsOfBody` has it."""


class NullValue(Node, frozen=True):
    """A minus sign before a value that is not a number, which gives null."""


class Not(Node, frozen=True):
    """The negation NOT of an operand."""

    operand: Expression


class Either(Node, frozen=True):
    """Operands joined by OR."""

    operands: tuple[Expression, ...]


class Both(Node, frozen=True):
    """Operands joined by AND."""

    operands: tuple[Expression, ...]


class Equal(Node, frozen=True):
    """The comparison ``=`` of two operands."""

    left: Expression
    right: Expression


class IsNull(Node, frozen=True):
    """The test IS NULL of an operand."""

    operand: Expression


class Order(Node, frozen=True):
    """A comparison of two operands. ``operator`` is one of ``< <= > >=``."""

    operator: str
    left: Expression
    right: Expression


class Between(Node, frozen=True):
    """The test [NOT] BETWEEN, with both bounds inclusive."""

    operand: Expression
    low: Expression
    high: Expression
    negated: bool


class In(Node, frozen=True):
    """The test [NOT] IN a list of values."""

    operand: Expression
    texts: frozenset[str]
    negated: bool


class Like(Node, frozen=True):
    """A test of a part of a text. ``operator`` is CONTAINS, STARTSWITH or ENDSWITH."""

    operator: str
    operand: Expression
    text: str
    negated: bool


Expression: TypeAlias = (
    Number
    | Text
    | BooleanLiteral
    | Property
    | NullValue
    | Not
    | Either
    | Both
    | Equal
    | IsNull
    | Order
    | Between
    | In
    | Like
)

# -- tokens ------------------------------------------------------------------------------------------------------------

_KEYWORDS: Final = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905 - one line
)
_LIKE: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_ORDER: Final = frozenset({"<", "<=", ">", ">="})
_RANGES: Final = frozenset({"BETWEEN", "IN"}) | _LIKE
_OR, _AND, _EQUALITY, _COMPARISON = 1, 2, 3, 4
_POWERS: Final = (
    {"OR": _OR, "AND": _AND, "=": _EQUALITY, "<>": _EQUALITY, "IS": _EQUALITY, "NOT": _COMPARISON}
    | dict.fromkeys(_ORDER, _COMPARISON)
    | dict.fromkeys(_RANGES, _COMPARISON)
)

_TOKEN: Final = re.compile(
    r"""
      (?P<space>   [ \t\n\r\f]+ | --[^\n\r]* | /\*.*?\*/ )
    | (?P<double>  [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<integer> (?:0|[1-9][0-9]*[lL]?) )
    | (?P<text>    '(?:''|[^'])*' )
    | (?P<word>    [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<sign>    <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    """The type of a literal, "name", "end", or the keyword or symbol itself."""
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            what = "a text without its closing quote" if text[at] == "'" else f"unexpected {text[at]!r}"
            raise SqlError(at + 1, "a comment without its end" if text.startswith("/*", at) else what)
        kind, image = str(match.lastgroup), match[0]
        if kind == "word":
            upper = image.upper()
            kind = upper if upper in _KEYWORDS else "name"
        elif kind == "sign":
            kind = image
        if kind != "space":
            tokens.append(_Token(kind, image, at + 1))
        at = match.end()
    tokens.append(_Token("end", "", len(text) + 1))
    return tokens


# -- grammar -----------------------------------------------------------------------------------------------------------


def parse(text: str, *, with_body: bool = False) -> Expression:
    """Parse an expression to its tree, without checking the types of operands. Raises SqlError.

    Only with ``with_body`` the expression may use bodies: ``BODY('$.a.b')``.
    """
    if len(text) > LENGTH_MAX:
        raise SqlError(LENGTH_MAX + 1, f"the expression has {len(text)} characters; maximum: {LENGTH_MAX}")
    return _Parser(_tokens(text), with_body=with_body).parse()


class _Parser:
    """Precedence climbing: three Python stack frames per parenthesis."""

    def __init__(self, tokens: list[_Token], *, with_body: bool) -> None:
        self._tokens = tokens
        self._with_body = with_body
        self._next = 0
        self._depth = 0
        self._nodes = 0

    def parse(self) -> Expression:
        tree = self._expression(_OR)
        if self._peek.kind != "end":
            raise self._syntax_error("an operator or the end")
        return tree

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _next_token(self) -> _Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _expect(self, kind: str) -> _Token:
        if self._peek.kind != kind:
            raise self._syntax_error("a text in single quotes" if kind == "text" else f"{kind!r}")
        return self._next_token()

    def _syntax_error(self, expected: str) -> SqlError:
        token = self._peek
        token_text = "the end" if token.kind == "end" else repr(token.text[:40])
        return SqlError(token.at, f"expected {expected}, found {token_text}")

    def _count(self, token: _Token) -> int:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise SqlError(token.at, f"more than {NODES_MAX} operators and operands")
        return token.at

    def _expression(self, power_min: int) -> Expression:
        left = self._unary()
        while (power := _POWERS.get(self._peek.kind, 0)) >= power_min:
            if power <= _AND:
                left = self._join(left, power)
            elif power == _EQUALITY:
                left = self._equality(left)
            else:
                left = self._comparison(left)
        return left

    def _join(self, left: Expression, power: int) -> Expression:
        word = self._peek.kind
        at = self._peek.at
        operands = [left]
        while self._peek.kind == word:
            self._count(self._next_token())
            operands.append(self._expression(power + 1))
        return Either(at, tuple(operands)) if power == _OR else Both(at, tuple(operands))

    def _equality(self, left: Expression) -> Expression:
        token = self._next_token()
        at = self._count(token)
        if token.kind != "IS":
            equal = Equal(at, left, self._expression(_COMPARISON))
            return equal if token.kind == "=" else Not(at, equal)
        negated = self._peek.kind == "NOT"
        if negated:
            self._next_token()
        self._expect("NULL")
        return Not(at, IsNull(at, left)) if negated else IsNull(at, left)

    def _comparison(self, left: Expression) -> Expression:
        token = self._next_token()
        at = self._count(token)
        if token.kind in _ORDER:
            return Order(at, token.kind, left, self._unary())
        negated = token.kind == "NOT"
        if negated:
            if self._peek.kind not in _RANGES:
                raise self._syntax_error("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH behind NOT")
            token = self._next_token()
        if token.kind == "BETWEEN":
            low = self._unary()
            self._expect("AND")
            return Between(at, left, low, self._unary(), negated)
        if token.kind == "IN":
            return In(at, left, self._texts(), negated)
        return Like(at, token.kind, left, _unquote(self._expect("text").text), negated)

    def _texts(self) -> frozenset[str]:
        self._expect("(")
        texts = {_unquote(self._expect("text").text)}
        while self._peek.kind == ",":
            self._next_token()
            texts.add(_unquote(self._expect("text").text))
        self._expect(")")
        return frozenset(texts)

    def _unary(self) -> Expression:
        token = self._peek
        if token.kind not in ("+", "-", "NOT", "("):
            return self._primary()
        self._next_token()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SqlError(token.at, f"nested more than {DEPTH_MAX} levels deep")
        node: Expression
        if token.kind == "(":
            node = self._expression(_OR)
            self._expect(")")
        else:
            operand = self._unary()
            if token.kind == "NOT":
                node = Not(self._count(token), operand)
            else:
                node = operand if token.kind == "+" else _negate(token.at, operand)
        self._depth -= 1
        return node

    def _primary(self) -> Expression:
        token = self._peek
        at = self._count(token)
        node: Expression
        match token.kind:
            case "text":
                node = Text(at, _unquote(token.text))
            case "integer":
                node = _integer(token)
            case "double":
                node = _double(token)
            case "TRUE" | "FALSE" | "NULL":
                node = BooleanLiteral(at, {"TRUE": True, "FALSE": False, "NULL": None}[token.kind])
            case "name" if token.text.upper() == "BODY" and self._tokens[self._next + 1].kind == "(":
                return self._field(token)
            case "name":
                node = Property(at, token.text)
            case _:
                raise self._syntax_error("a literal, a property or an opening parenthesis")
        self._next_token()
        return node

    def _field(self, word: _Token) -> Field:
        if not self._with_body:
            reason = "BODY(...) needs a filter server: subscribe with BodyFilter(...) instead of sql(...)"
            raise SqlError(word.at, reason)
        self._next += 2
        path = self._expect("text")
        self._expect(")")
        try:
            return Field(word.at, field_name(_unquote(path.text)))
        except ValueError as error:
            raise SqlError(path.at, str(error)) from error


def _unquote(image: str) -> str:
    return image[1:-1].replace("''", "'")


def _integer(token: _Token) -> Number:
    digits = token.text.rstrip("lL")
    value = int(digits) if len(digits) <= 19 else _LONG_MAX + 1
    if value > _LONG_MAX:
        raise SqlError(token.at, f"the number is larger than {_LONG_MAX}")
    return Number(token.at, value, "int" if value <= _INT_MAX else "long")


def _double(token: _Token) -> Number:
    value = float(token.text)
    if value == float("inf"):
        raise SqlError(token.at, "the number is too large for 64 bits")
    if value == 0:
        raise SqlError(token.at, "zero and what is nearly zero cannot be written as a fraction; write 0")
    return Number(token.at, value, "double")


def _negate(at: int, operand: Expression) -> Expression:
    if isinstance(operand, Number):
        return Number(at, -operand.value, operand.kind, literal=False)
    return NullValue(at)
