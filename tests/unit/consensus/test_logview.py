"""Term runs against a log that keeps the term of every entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus.log_terms import LogTerms
from raftlog.consensus.types import NONE, LogId
from raftlog.log_numbers import LogIndex, Term
from tests.support.log_values import log_id, span_of

logs = st.lists(st.integers(1, 6), max_size=14).map(sorted)


def view_of(terms: list[int], base: int = 0) -> LogTerms:
    """A view of the entries behind ``base``; entry i has the term ``terms[i - 1]``."""
    runs = [(LogIndex(i), Term(t)) for i, t in enumerate(terms, 1) if i == 1 or terms[i - 2] != t]
    return LogTerms(log_id(base, terms[base - 1]) if base else NONE, runs, LogIndex(len(terms)))


def check_equal(view: LogTerms, terms: list[int], base: int = 0) -> None:
    view.check_invariants()
    assert view.last == log_id(len(terms), terms[-1] if terms else 0)
    assert [view.term_at(LogIndex(index)) for index in range(max(base, 1), len(terms) + 1)] == terms[max(base, 1) - 1 :]


@given(logs, st.data())
def test_log_view_returns_the_term_of_every_entry_above_its_base(terms: list[int], data: st.DataObject) -> None:
    base = data.draw(st.integers(0, len(terms)))
    view = view_of(terms, base)
    check_equal(view, terms, base)
    for index in (base - 1, len(terms) + 1):
        with pytest.raises(AssertionError):
            view.term_at(LogIndex(index))


@given(logs, st.data())
def test_log_view_supports_append_truncate_and_compact(terms: list[int], data: st.DataObject) -> None:
    view = view_of(terms)
    base = 0
    for _ in range(6):
        step = data.draw(st.sampled_from(["append", "truncate", "compact"]))
        if step == "append":
            term = data.draw(st.integers(terms[-1] if terms else 1, 8))
            count = data.draw(st.integers(1, 3))
            view.append(LogIndex(len(terms) + count), Term(term))
            terms = terms + [term] * count
        elif step == "truncate" and base < len(terms):
            first = data.draw(st.integers(base + 1, len(terms)))
            view.truncate(LogIndex(first))
            terms = terms[: first - 1]
        elif step == "compact":
            base = max(base, data.draw(st.integers(0, len(terms))))
            view.compact(LogIndex(base))
        check_equal(view, terms, base)


@given(logs, st.integers(0, 15), st.integers(0, 8))
def test_last_at_most_skips_whole_terms(terms: list[int], index: int, term: int) -> None:
    found = view_of(terms).last_at_most(log_id(index, term))
    expected = max((i for i, t in enumerate(terms, 1) if i <= index and t <= term), default=0)
    assert found == log_id(expected, terms[expected - 1] if expected else 0)


@given(logs, st.integers(0, 15), st.integers(0, 8))
def test_holds_exactly_its_own_entries(terms: list[int], index: int, term: int) -> None:
    expected = index == term == 0 or (1 <= index <= len(terms) and terms[index - 1] == term)
    assert view_of(terms).holds(log_id(index, term)) == expected


@given(logs, st.data())
def test_log_view_finds_the_first_different_entry(terms: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(1, len(terms) + 1))
    last = first + data.draw(st.integers(0, 5))
    term = data.draw(st.integers(terms[first - 2] if first > 1 else 1, 8))
    expected = next(
        (index for index in range(first, last + 1) if index > len(terms) or terms[index - 1] != term), last + 1
    )
    assert view_of(terms).first_difference(span_of(first, last, term, 1)) == expected


@given(logs, logs)
def test_search_for_the_last_common_entry_takes_one_round_per_term(ours: list[int], theirs: list[int]) -> None:
    """Leader and follower in turn name the last entry that can still be common, as they do over the wire."""
    leader, follower = view_of(ours), view_of(theirs)
    prev = leader.last
    rounds = 0
    while not follower.holds(prev):
        rounds += 1
        prev = leader.last_at_most(follower.last_at_most(prev))
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    assert prev.index <= len(ours)
    assert rounds <= len({*ours}) + 1
    assert prev.index >= common


@pytest.mark.parametrize(
    ("base", "runs", "last_index"),
    [
        (log_id(5, 2), [], 4),
        (NONE, [], 3),
        (NONE, [(1, 2), (4, 1)], 6),
        (log_id(5, 2), [(3, 3)], 8),
    ],
    ids=["ends before its base", "no terms", "term falls", "run contradicts the base"],
)
def test_impossible_logs_are_refused(base: LogId, runs: list[tuple[int, int]], last_index: int) -> None:
    with pytest.raises(AssertionError):
        LogTerms(base, [(LogIndex(first), Term(term)) for first, term in runs], LogIndex(last_index))
