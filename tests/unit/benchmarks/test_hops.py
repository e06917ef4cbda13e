"""Hops per message, from the walks of two chunks."""

from __future__ import annotations

import pytest

from benchmarks.hops import FEW, MANY, per_message


@pytest.mark.parametrize(("few", "many", "each"), [(116, 116, 0), (116, 115, 0), (115, 116, 0), (135, 359, 7)])
def test_one_hop_more_or_less_in_a_round_is_ignored_per_message(few: int, many: int, each: int) -> None:
    assert MANY - FEW == 32
    assert per_message(few, many) == each
