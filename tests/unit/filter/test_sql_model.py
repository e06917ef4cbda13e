"""SQL92 expressions of all shapes against an evaluator that walks them in the plainest way."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mq.filter.sql import SqlFilter

NAMES = ("a", "b", "c")
WORDS = ("x", "true", "FALSE", "1", "-1", "5", "2147483648", "0.5", "5.0", "NaN", " 5", "it's")


class Broken(Exception):
    """Java would throw."""


# A tree is a tuple: what it is, then its parts. Numbers are ("number", kind, value).
numbers = st.one_of(
    st.sampled_from([0, 1, 5, 2**31 - 1]).map(lambda n: ("number", "int", n)),
    st.sampled_from([2**31, 2**40]).map(lambda n: ("number", "long", n)),
    st.sampled_from([0.5, 5.0, 1e300]).map(lambda n: ("number", "double", n)),
)
negative = numbers.map(lambda n: ("number", n[1], -n[2]))
properties_ = st.sampled_from(NAMES).map(lambda name: ("property", name))
words = st.sampled_from(WORDS)
texts = words.map(lambda text: ("text", text))
numeric = st.one_of(properties_, numbers, negative)


def conditions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    values = st.one_of(properties_, texts, numbers, negative, inner)
    return st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["=", "<>"]), st.one_of(properties_, inner), values),
        st.tuples(st.sampled_from(["=", "<>"]), values, st.one_of(properties_, inner)),
        st.tuples(st.sampled_from(["null", "not null"]), values),
        st.tuples(
            st.sampled_from(["contains", "startswith", "endswith"]), st.booleans(), values, st.sampled_from(WORDS)
        ),
    )


leaves = st.one_of(
    st.sampled_from([True, False, None]).map(lambda truth: ("truth", truth)),
    st.tuples(st.sampled_from(["<", "<=", ">", ">="]), numeric, numeric),
    st.tuples(st.sampled_from(["between", "not between"]), numeric, properties_, numeric),
    st.tuples(
        st.booleans().map(lambda n: "not in" if n else "in"), properties_, st.lists(st.sampled_from(WORDS), min_size=1)
    ),
    st.sampled_from(NAMES).map(lambda name: ("as truth", name)),
)
trees = st.recursive(leaves, conditions, max_leaves=8)
messages = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(WORDS))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def written(tree: Any) -> str:
    """A tree as text, every operand in parentheses except what stands alone."""
    kind = tree[0]
    if kind == "number":
        return repr(tree[2])
    if kind == "text":
        return quoted(tree[1])
    if kind == "property":
        return str(tree[1])
    if kind == "as truth":
        return f"({tree[1]} OR FALSE)"
    if kind == "truth":
        return {True: "TRUE", False: "fAlse", None: "null"}[tree[1]]
    if kind == "not":
        return f"NOT ({written(tree[1])})"
    if kind in ("null", "not null"):
        return f"({written(tree[1])}) IS {kind.upper()}"
    if kind in ("between", "not between"):
        return f"{written(tree[1])} {kind} {written(tree[2])} AND {written(tree[3])}"
    if kind in ("in", "not in"):
        return f"{tree[1][1]} {kind} ({', '.join(map(quoted, tree[2]))})"
    if kind in ("contains", "startswith", "endswith"):
        return f"({written(tree[2])}) {'NOT ' if tree[1] else ''}{kind} {quoted(tree[3])}"
    return f"({written(tree[1])}) {kind} ({written(tree[2])})"


def read(text: str, kind: str) -> float:
    if kind == "double":
        if text.strip() in ("NaN", "Infinity"):
            return float(text)
        if not re.fullmatch(r"[+-]?\d+(\.\d+)?", text.strip()):
            raise Broken
        return float(text)
    if not re.fullmatch(r"[+-]?\d+", text):
        raise Broken
    limit = 2**31 if kind == "int" else 2**63
    if not -limit <= int(text) < limit:
        raise Broken
    return int(text)


def compare(left: float, right: float) -> int:
    """-1, 0 or 1; not-a-number is the largest."""
    if math.isnan(left) or math.isnan(right):
        return int(math.isnan(left)) - int(math.isnan(right))
    return (left > right) - (left < right)


def both_as_numbers(left: Any, right: Any) -> tuple[float, float]:
    if isinstance(left, str) and isinstance(right, str):
        return read(left, "double"), read(right, "double")
    if isinstance(left, str):
        return read(left, right[0]), right[1]
    if isinstance(right, str):
        return left[1], read(right, left[0])
    return left[1], right[1]


def equal(left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return True if left is right else (None if left is None else False)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        truths = [side.lower() == "true" if isinstance(side, str) else side for side in (left, right)]
        return truths[0] is truths[1]
    numbers = both_as_numbers(left, right)
    return compare(*numbers) == 0


def evaluate(tree: Any, message: dict[str, str]) -> Any:
    """Numbers come out as (kind, value)."""
    kind = tree[0]
    match kind:
        case "number":
            return tree[1:]
        case "text" | "truth":
            return tree[1]
        case "property":
            return message.get(tree[1])
        case "as truth":
            return None if message.get(tree[1]) is None else False
        case "not":
            inner = evaluate(tree[1], message)
            return None if inner is None else not inner
        case "and" | "or":
            decides = kind == "or"
            left = evaluate(tree[1], message)
            if left is decides:
                return decides
            right = evaluate(tree[2], message)
            if right is decides:
                return decides
            return None if left is None or right is None else not decides
        case "=" | "<>":
            same = equal(evaluate(tree[1], message), evaluate(tree[2], message))
            return same if kind == "=" or same is None else not same
        case "null" | "not null":
            return (evaluate(tree[1], message) is None) == (kind == "null")
        case "in" | "not in":
            text = message.get(tree[1][1])
            return None if text is None else (text in tree[2]) == (kind == "in")
        case "contains" | "startswith" | "endswith":
            text = evaluate(tree[2], message)
            if not isinstance(text, str):
                return False
            found = {
                "contains": tree[3] in text,
                "startswith": text.startswith(tree[3]),
                "endswith": text.endswith(tree[3]),
            }
            return found[kind] != tree[1]
        case "between":
            return evaluate(("and", (">=", tree[1], tree[2]), ("<=", tree[1], tree[3])), message)
        case "not between":
            return evaluate(("or", ("<", tree[1], tree[2]), (">", tree[1], tree[3])), message)
        case _:
            return ordered(kind, evaluate(tree[1], message), evaluate(tree[2], message))


def ordered(kind: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    order = compare(*both_as_numbers(left, right))
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[kind]


@pytest.mark.slow
@settings(max_examples=1500, derandomize=True, deadline=None)
@given(trees, messages)
@example(("=", ("property", "a"), ("truth", True)), {"a": "true"})
@example(("or", (">", ("property", "a"), ("number", "int", 1)), ("truth", True)), {"a": "x"})
def test_filter_agrees_with_the_simple_evaluator(tree: Any, message: dict[str, str]) -> None:
    if _compares_null_literal(tree):
        return
    try:
        expected = evaluate(tree, message) is True
    except Broken:
        expected = False
    text = written(tree)
    assert SqlFilter(text).matches(message) is expected, text


def _compares_null_literal(tree: Any) -> bool:
    """What is refused: ``= NULL``, and a truth literal against another kind of literal."""
    if not isinstance(tree, tuple):
        return False
    if tree[0] in ("=", "<>"):
        if ("truth", None) in tree[1:]:
            return True
        kinds = {side[0] for side in tree[1:]}
        if "truth" in kinds and kinds & {"text", "number"}:
            return True
    return any(_compares_null_literal(part) for part in tree[1:])
