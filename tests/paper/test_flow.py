"""How much gets through where the way is long."""

from __future__ import annotations

import heapq
import itertools

from raftlog.consensus.messages import Message
from raftlog.consensus.types import CoreConfig
from tests.paper.group import A, Group

WINDOW = 1024 * 1024
ENTRY = 8 * 1024
ONE_WAY_SECONDS = 0.05
STEP_SECONDS = 0.005


def test_one_window_is_sent_per_round_trip() -> None:
    """With 100 ms there and back a window goes through per round trip, for whoever writes more than that."""
    config = CoreConfig(
        append_bytes_max=64 * 1024,
        inflight_bytes_max=WINDOW,
        uncommitted_bytes_max=8 * WINDOW,
        accept_ack_bytes=256 * 1024,
    )
    group = Group(3, config=config)
    core = group.elect(A)
    group.pass_time(0.1)
    on_the_way: list[tuple[float, int, Message]] = []
    numbers = itertools.count()
    begin, committed, seconds = group.now, core.commit, 3.0
    while group.now < begin + seconds:
        group.now += STEP_SECONDS
        while on_the_way and on_the_way[0][0] <= group.now:
            group.hand_over(heapq.heappop(on_the_way)[2])
        while isinstance(core.propose(1, ENTRY, group.now), int):
            pass
        for node in group.nodes:
            group[node].tick(group.now)
        group.pump()
        for message in group.drop():
            heapq.heappush(on_the_way, (group.now + ONE_WAY_SECONDS, next(numbers), message))
    expected = WINDOW / (2 * ONE_WAY_SECONDS) * seconds
    assert (core.commit - committed) * ENTRY >= 0.9 * expected
