"""Tail, tickets and progress: small state machines of the core, against naive models."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus.progress import Progress
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.span_cache import Tail
from raftlog.consensus.types import NONE, ConfState, CoreConfig, HardState, NodeId, PeerState, Role, Span
from raftlog.consensus.write_tickets import WriteTickets
from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from tests.support.log_values import log_id, span_of

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(1, 400)),
        st.tuples(st.just("truncate"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("compact"), st.integers(0, 3), st.just(0)),
    ),
    max_size=30,
)


@given(steps, st.integers(1, 1000), st.integers(1, 8))
def test_tail_has_whole_spans_up_to_the_end(steps: list[tuple[str, int, int]], bytes_max: int, spans_max: int) -> None:
    """Whatever it remembers are the spans that were appended last, joined, and bounded once they are committed."""
    tail = Tail(bytes_max, spans_max)
    spans: list[Span] = []
    last = 0
    for step, number, nbytes in steps:
        if step == "append":
            span = span_of(last + 1, last + number, 1, nbytes)
            tail.append(span, commit=LogIndex(last))
            spans.append(span)
            last += number
            assert len(tail) <= spans_max or len(tail) == 1
            assert tail.nbytes <= bytes_max or len(tail) == 1
        elif step == "truncate" and number <= last:
            last -= number
            tail.truncate(LogIndex(last + 1))
            cut = any(span.first <= last < span.last for span in spans)
            spans = [] if cut else [span for span in spans if span.last <= last]
        elif step == "compact":
            tail.compact(LogIndex(max(last - number, 0)))
        tail.check_invariants()
        assert tail.after(NO_INDEX) == spans[len(spans) - len(tail) :]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 1000), st.data())
def test_tail_chunk_is_bounded_and_has_the_index(sizes: list[int], bytes_max: int, data: st.DataObject) -> None:
    tail = Tail(1 << 20, 1000)
    for number, nbytes in enumerate(sizes):
        tail.append(span_of(2 * number + 1, 2 * number + 2, 1, nbytes), commit=NO_INDEX)
    first = data.draw(st.integers(1, 2 * len(sizes)))
    chunk = tail.chunk(LogIndex(first), bytes_max)
    assert chunk[0].first <= first <= chunk[0].last
    assert len(chunk) == 1 or sum(span.nbytes for span in chunk) <= bytes_max
    following = chunk[-1].last // 2
    if following < len(sizes):
        assert sum(span.nbytes for span in chunk) + sizes[following] > bytes_max, "one more span would have fitted"


def test_tail_forgets_committed_spans_only() -> None:
    tail = Tail(250, 100)
    for index in range(1, 6):
        tail.append(span_of(index, index, 1, 100), commit=LogIndex(1))
    assert [span.first for span in tail.after(NO_INDEX)] == [2, 3, 4, 5]
    assert tail.chunk(LogIndex(1), 1000) == ()


@given(st.lists(st.sampled_from(["append", "issue", "done", "truncate"]), max_size=40), st.randoms())
def test_tickets_report_only_entries_on_disk(steps: list[str], rng: random.Random) -> None:
    """Durable is compared with a disk that keeps, for each index, which version of the entry was written there."""
    tickets = WriteTickets(NO_INDEX)
    log: list[int] = []
    disk: list[int] = []
    writes: deque[tuple[int, list[int]]] = deque()
    version = 0
    for step in steps:
        if step == "append":
            version += 1
            log.append(version)
        elif step == "issue":
            writes.append((tickets.issue(LogIndex(len(log)), with_hard_state=False), list(log)))
        elif step == "done" and writes:
            ticket = 0
            for _ in range(rng.randint(1, len(writes))):
                ticket, disk = writes.popleft()
            before = tickets.durable
            assert tickets.complete(ticket) == (tickets.durable > before)
        elif step == "truncate" and log:
            del log[rng.randrange(len(log)) :]
            tickets.truncate(LogIndex(len(log)))
        assert tickets.durable <= len(log)
        assert disk[: tickets.durable] == log[: tickets.durable]
        if not writes and disk == log:
            assert tickets.durable == len(log) or not log or tickets.last_issued == 0


def test_progress_window_is_bounded_and_freed() -> None:
    config = CoreConfig(inflight_messages_max=2, inflight_bytes_max=1000, append_bytes_max=500, accept_ack_bytes=0)
    progress = Progress(NodeId("b"))
    progress.become_replicate(LogIndex(1))
    for index in (1, 2):
        assert progress.may_send(config)
        progress.on_send(progress.stamp(0.0), (span_of(index, index, 1, 100),))
    assert not progress.may_send(config)
    progress.free_inflight(LogIndex(1))
    assert progress.may_send(config)
    progress.on_send(progress.stamp(0.0), (span_of(3, 3, 1, 1000),))
    progress.free_inflight(LogIndex(2))
    assert not progress.may_send(config), "one message is free, the bytes are not"
    progress.become_probe(LogIndex(2))
    assert (progress.state, progress.inflight_bytes) == (PeerState.PROBE, 0)
    progress.check_invariants()


def test_progress_contact_is_when_the_answered_message_left() -> None:
    """An answer proves that the peer lived after the message left, not that it lives now."""
    progress = Progress(NodeId("b"))
    first = progress.stamp(10.0)
    second = progress.stamp(11.0)
    progress.on_receipt(first - 1)
    assert progress.contact_at == 0.0
    progress.on_receipt(second)
    assert progress.contact_at == 10.0
    progress.on_receipt(second)
    third = progress.stamp(12.0)
    progress.on_receipt(second)
    assert progress.contact_at == 10.0
    progress.on_receipt(third)
    assert progress.contact_at == 12.0


def core(**changes: object) -> RaftCore:
    arguments: dict[str, object] = {
        "node_id": NodeId("a"),
        "confs": [(0, ConfState((NodeId("a"),)))],
        "config": CoreConfig(),
        "hard_state": HardState(),
        "term_runs": [],
        "base": NONE,
        "last_index": 0,
        "commit": 0,
        "rng": random.Random(0),
        "now": 0.0,
    }
    return RaftCore(**(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("hint", "commit"), [(0, 3), (5, 5), (99, 7)])
def test_commit_hint_is_kept_within_the_log(hint: int, commit: int) -> None:
    started = core(base=log_id(3, 1), term_runs=[(4, 1)], last_index=7, commit=hint, hard_state=HardState(Term(1)))
    assert (started.commit, started.durable, started.last) == (commit, 7, log_id(7, 1))


def test_entries_newer_than_their_hard_state_give_the_term() -> None:
    started = core(term_runs=[(1, 4)], last_index=2, hard_state=HardState(Term(3), NodeId("x")))
    assert started.term == 4
    op = started.take_effects().storage
    assert op is not None
    assert op.hard_state == HardState(Term(4), None)


def test_every_change_of_role_term_or_leader_is_reported_once() -> None:
    started = core()
    assert started.take_effects().role is None
    started.tick(0.0)
    change = started.take_effects().role
    assert change is not None
    assert (change.role, change.term, change.leader_id) == (Role.LEADER, 1, NodeId("a"))
    assert started.take_effects().role is None


def test_deadline_is_in_the_future_after_each_tick() -> None:
    started = core(confs=[(0, ConfState((NodeId("a"), NodeId("b"), NodeId("c"))))])
    now = 0.0
    for _ in range(50):
        now = started.next_deadline()
        started.tick(now)
        started.take_effects()
        assert started.next_deadline() > now


@pytest.mark.parametrize(
    "changes",
    [
        {"heartbeat_seconds": 1.0},
        {"announce_seconds": 0.3},
        {"election_timeout_seconds_max": 1.0},
        {"vote_retry_seconds_min": 0.9},
        {"append_bytes_max": 0},
        {"inflight_bytes_max": 1000},
        {"accept_ack_bytes": 16 * 1024 * 1024},
    ],
)
def test_contradicting_settings_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        CoreConfig(**changes)  # type: ignore[arg-type]


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 10_000), st.data())
def test_span_parts_join_and_keep_their_bytes(first: int, length: int, nbytes: int, data: st.DataObject) -> None:
    span = span_of(first, first + length, 3, nbytes)
    cut = data.draw(st.integers(first, span.last))
    head = span.up_to(LogIndex(cut))
    assert (head.first, head.last, head.term) == (first, cut, 3)
    assert head.nbytes <= nbytes
    if cut < span.last:
        rest = span.since(LogIndex(cut + 1))
        assert (rest.first, rest.last) == (cut + 1, span.last)
        assert head.nbytes + rest.nbytes in (nbytes, nbytes - 1)
    assert span.up_to(span.last).nbytes == nbytes
