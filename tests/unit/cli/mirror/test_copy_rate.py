"""How far a mirror is: rates, the time until it has caught up, and the offsets of its copies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.cli.mirror.copy_rate import Progress, duration
from mq.cli.mirror.offset_map import OffsetMap


def test_mirror_eta_includes_arriving_messages() -> None:
    progress = Progress()
    progress.add_sample(0.0, 0, 10_000)
    figures = progress.add_sample(10.0, 5_000, 6_000)  # 1,000 arrived
    assert figures.rate == 500
    assert figures.eta_seconds == 15
    assert figures.text() == "5,000 copied, 6,000 behind, 500 messages/s, caught up in 15 s"


def test_progress_reports_a_mirror_falling_behind() -> None:
    progress = Progress()
    progress.add_sample(0.0, 0, 1_000)
    assert progress.add_sample(1.0, 100, 2_000).text().endswith("does not come closer")
    assert progress.add_sample(2.0, 2_100, 0).text().endswith("caught up")


def test_rates_cover_the_last_half_minute() -> None:
    progress = Progress()
    for second in range(100):
        figures = progress.add_sample(float(second), min(second, 50) * 100, 7)
    assert figures.rate == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89.4, "89 s"), (90, "2 min"), (3600 * 3 + 1200, "3 h 20 min"), (3600 * 52, "2 d 4 h")],
)
def test_durations_are_printed_in_short_form(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_offset_map_joins_adjacent_ranges() -> None:
    offsets = OffsetMap([(10, 0, 5), (15, 5, 5)])
    assert list(offsets) == [(10, 0, 10)]
    assert offsets.message_count == 10


def test_offset_is_translated_in_both_directions() -> None:
    offsets = OffsetMap([(10, 0, 5), (20, 7, 3)])
    assert [offsets.to_target(each) for each in (10, 14, 20, 22)] == [0, 4, 7, 9]
    assert [offsets.to_source(each) for each in (0, 4, 7, 9)] == [10, 14, 20, 22]


def test_offset_in_an_uncopied_range_moves_to_the_next_copy() -> None:
    offsets = OffsetMap([(10, 0, 5), (20, 7, 3)])
    assert offsets.to_target(0) == 0  # the source had deleted these
    assert offsets.to_target(15) == offsets.to_target(19) == 7
    assert offsets.to_target(23) == offsets.to_target(1000) == 10
    assert offsets.to_source(5) == offsets.to_source(6) == 20  # somebody else's messages
    assert offsets.to_source(10) == 23
    assert OffsetMap().to_target(3) is None


@pytest.mark.parametrize("wrong", [(14, 5, 1), (15, 4, 1), (9, 9, 1), (20, 20, 0), (-1, 0, 1)])
def test_messages_out_of_order_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError):
        OffsetMap([(10, 0, 5), wrong])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=8))
def test_translation_agrees_with_a_table(gaps: list[tuple[int, int, int]]) -> None:
    offsets, table, source, target = OffsetMap(), dict[int, int](), 0, 0
    for source_gap, target_gap, count in gaps:
        source, target = source + source_gap, target + target_gap
        offsets.add(source, target, count)
        table |= {source + n: target + n for n in range(count)}
        source, target = source + count, target + count
    for offset in range(source + 2):
        behind = [table[each] for each in sorted(table) if each >= offset]
        assert offsets.to_target(offset) == (behind[0] if behind else target)
    for one, other in table.items():
        assert offsets.to_source(other) == one
