"""What the session with a broker group does when the leader refuses a transfer for the moment."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mq.client import Admin
from mq.inspection.group_session import GroupSession
from mq.protocol.requests.namesrv import BrokerData, ClusterInfo
from mq.protocol.requests.raft_group import GroupAnswer, GroupCommand, GroupView, MemberView


class Leader:
    """The leader of a group, to which n3 was added: it has answered no heartbeat before ``answers_at``."""

    def __init__(self, answers_at: float, *, lag: int = 0, disk_ok: bool = True) -> None:
        self._answers_at = answers_at
        member = MemberView(
            node_id="n3", role="voter", active=True, state="replicate", lag_entries=lag, disk_ok=disk_ok
        )
        self._view = GroupView(
            node_id="n0",
            cluster="c",
            group="g",
            role="leader",
            term=1,
            leader="n0",
            base_index=0,
            last_index=1000,
            commit_index=1000,
            abstaining=False,
            disk_used=0.1,
            members=[member],
        )

    async def cluster_info(self) -> ClusterInfo:
        data = BrokerData(cluster="c", broker_name="g", broker_addrs={0: "127.0.0.1:1"})
        return ClusterInfo(brokers={"g": data}, clusters={"c": ["g"]})

    async def manage_group(self, address: str, command: GroupCommand, *, timeout: float = 3.0) -> GroupAnswer:
        if command.action == "transfer" and trio.current_time() < self._answers_at:
            return GroupAnswer(done=False, code="NOT_CAUGHT_UP", text="n3 lacks 0 of 1000 entries", view=self._view)
        return GroupAnswer(done=True, code="", text="n3 leads", view=self._view)


async def transferred(leader: Leader) -> tuple[bool, float]:
    """Whether a transfer to n3 succeeded, and after how long."""
    begin = trio.current_time()
    answer = await GroupSession(cast("Admin", leader), None, lambda text: None).change("transfer", "n3")
    return answer.done, trio.current_time() - begin


async def test_new_member_leads_once_it_answered_a_heartbeat(autojump_clock: MockClock) -> None:
    done, seconds = await transferred(Leader(trio.current_time() + 0.35))
    assert done
    assert 0.35 <= seconds < 0.6


async def test_member_that_never_answers_is_refused_after_some_heartbeats(autojump_clock: MockClock) -> None:
    done, seconds = await transferred(Leader(float("inf")))
    assert not done
    assert 2.0 <= seconds < 2.5


@pytest.mark.parametrize(
    "leader", [Leader(float("inf"), lag=300), Leader(float("inf"), disk_ok=False)], ids=["behind", "disk full"]
)
async def test_member_that_cannot_lead_soon_is_refused_at_once(autojump_clock: MockClock, leader: Leader) -> None:
    done, seconds = await transferred(leader)
    assert not done
    assert seconds == 0.0
