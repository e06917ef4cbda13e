"""Syntax trees of sources, for the rules of this project, which look at all of them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from functools import lru_cache

LEAVES = (ast.Name, ast.Constant, ast.alias, ast.Pass)
"""Half of all nodes; there is nothing below them."""


@lru_cache(maxsize=1)
def nodes(source: str) -> tuple[ast.AST, ...]:
    """The syntax tree and all that is in it, as `ast.walk` without loads and stores, in a third of the time.

    Kept until the next source, since many rules look at each.
    """
    found: list[ast.AST] = [ast.parse(source)]
    for node in found:
        if isinstance(node, LEAVES):
            continue
        for name in node._fields:
            value = getattr(node, name, None)
            if type(value) is list:
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    return tuple(found)


@lru_cache(maxsize=1)
def nodes_by_kind(source: str) -> dict[type[ast.AST], list[ast.AST]]:
    """The same by their types, for rules that look at few of these."""
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in nodes(source):
        found.setdefault(type(node), []).append(node)
    return found


def nodes_of(source: str, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    """Those of these types."""
    by_kind = nodes_by_kind(source)
    return itertools.chain.from_iterable(by_kind.get(kind, ()) for kind in kinds)
