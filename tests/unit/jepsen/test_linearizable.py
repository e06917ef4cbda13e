"""The search for an order, against trying all orders of small random histories; and what the checker makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import given

from checkers.events import Type
from checkers.linearizable import Access, is_linearizable
from checkers.registers import check_registers
from tests.unit.jepsen.histories import Script


def tried_in_every_order(accesses: Sequence[Access]) -> bool:
    """The same question, by brute force; writes of unknown outcome are left out or not."""
    known = [access for access in accesses if access.ended is not None]
    unknown = [access for access in accesses if access.ended is None]
    return any(
        agrees(order)
        for count in range(len(unknown) + 1)
        for some in itertools.combinations(unknown, count)
        for order in itertools.permutations([*known, *some])
    )


def agrees(order: Sequence[Access]) -> bool:
    value = None
    for at, access in enumerate(order):
        if any(later.ended is not None and later.ended < access.began for later in order[at + 1 :]):
            return False
        if access.is_write:
            value = access.value
        elif access.value != value:
            return False
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Access]:
    accesses = []
    for _ in range(draw(st.integers(0, 6))):
        began = draw(st.integers(0, 12))
        is_write = draw(st.booleans())
        is_known = not is_write or draw(st.integers(0, 3)) > 0
        ended = began + draw(st.integers(0, 6)) if is_known else None
        accesses.append(Access(began, ended, is_write, draw(st.sampled_from([1, 2] if is_write else [None, 1, 2]))))
    return accesses


@given(histories())
def test_linearizability_search_agrees_with_trying_all_orders(accesses: list[Access]) -> None:
    assert is_linearizable(accesses, None) is tried_in_every_order(accesses)


def test_search_gives_up_after_its_maximum_of_steps() -> None:
    assert is_linearizable([Access(0, 1, is_write=True, value=1)], None, steps_max=1) is None


def accessed(script: Script, name: str, value: int | None, outcome: Type = "ok", key: str = "K") -> None:
    process = 1 if outcome == "ok" else 100 + len(script.events)
    script.add(process, "invoke", name, k=key, v=value if name == "write" else None)
    script.add(process, outcome, name, k=key, v=value, n="n1")


def test_written_values_are_read(script: Script) -> None:
    accessed(script, "get", None)
    accessed(script, "write", 1)
    accessed(script, "write", 2, "info")
    accessed(script, "write", 3, "fail")
    accessed(script, "get", 1)
    accessed(script, "get", 2)
    accessed(script, "get", 7, "info")
    accessed(script, "write", 1, key="L")
    assert check_registers(script.history()).valid is True


def test_checker_finds_a_read_of_an_overwritten_value(script: Script) -> None:
    accessed(script, "write", 1)
    accessed(script, "write", 2)
    accessed(script, "get", 1)
    result = check_registers(script.history())
    assert result.anomalies == {"not-linearizable": 1}
    assert "read 1 at n1" in result.examples["not-linearizable"][0]


def test_checker_finds_a_read_of_a_refused_value(script: Script) -> None:
    accessed(script, "write", 1)
    accessed(script, "write", 3, "fail")
    accessed(script, "get", 3)
    assert check_registers(script.history()).anomalies == {"not-linearizable": 1}


def test_run_without_reads_leaves_the_verdict_open(script: Script) -> None:
    accessed(script, "write", 1)
    assert check_registers(script.history()).valid == "unknown"
