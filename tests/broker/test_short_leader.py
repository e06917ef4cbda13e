"""A leader whose log begins later than that of a replica which cannot take over: it says of nothing that it is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker.retention_floor import NOTHING, RetentionFloor
from mq.protocol.codes import RequestCode, ResponseCode
from raftlog import Beginning, NodeId, Replica
from tests.support.popping import popped
from tests.support.running_broker import Client, broker_client, properties
from tests.support.short_logs import SMALL, fill, shortened


class Others:
    """What the leader knows of others' logs."""

    def __init__(self) -> None:
        self.state: tuple[Beginning, NodeId | None] = (Beginning.LATER, NodeId("n1"))


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    known = Others()
    monkeypatch.setattr(Replica, "beginning", lambda _: known.state)
    return known


async def short_log(client: Client, log: Path) -> None:
    assert (await client.create_topic("T", 1)).code == 0
    await fill(client)
    await shortened(client, log)


async def test_pull_is_sent_to_the_replica_with_older_messages(tmp_path: Path, others: Others) -> None:
    async with broker_client(tmp_path, **SMALL) as client:
        await short_log(client, tmp_path / "commitlog")
        sent = await client.pull(offset=0)
        assert (sent.code, sent.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
        assert sent.ext["suggestWhichBrokerId"] == "2"
        others.state = (Beginning.UNKNOWN, None)
        unknown = await client.pull(offset=0)
        assert (unknown.code, unknown.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
        others.state = (Beginning.FIRST, None)
        gone = await client.pull(offset=0)
        assert gone.code == ResponseCode.PULL_OFFSET_MOVED
        assert int(gone.ext["nextBeginOffset"]) > 0


@pytest.mark.parametrize("state", [Beginning.LATER, Beginning.UNKNOWN])
async def test_shortened_leader_reports_no_message_as_deleted(tmp_path: Path, others: Others, state: Beginning) -> None:
    """Search, minimum, reset to the first message and pops: each is refused or gets nothing, and skips nothing."""
    others.state = (state, None)
    queue: dict[str, Any] = {"topic": "T", "queueId": 0}
    async with broker_client(tmp_path, **SMALL) as client:
        await short_log(client, tmp_path / "commitlog")
        keys: dict[str, Any] = {"topic": "T", "key": "unknown", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 2**62}
        for group in ("G", "H"):
            commit = {"consumerGroup": group, "commitOffset": 3} | queue
            assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        reset: dict[str, Any] = {"topic": "T", "group": "G", "timestamp": 0, "isForce": True}
        for code, fields in [
            (RequestCode.GET_MIN_OFFSET, queue),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": 0}),
            (RequestCode.GET_EARLIEST_MSG_STORETIME, queue),
            (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"offset": 0, "queueId": 0}),
            (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}),
            (RequestCode.QUERY_MESSAGE, keys),
        ]:
            answer = await client.request(code, dict(fields))
            # A search by key may also find out by itself that it is not complete.
            assert answer.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY), (code, answer)
            others.state = (Beginning.FIRST, None)
            if code not in (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.QUERY_MESSAGE):
                assert (await client.request(code, dict(fields))).code == 0, code
            others.state = (state, None)
        # A group that pops for the first time must not begin behind what others have, nor one that has an offset.
        assert await popped(client, consumerGroup="P") == []
        assert await popped(client, consumerGroup="H") == []
        others.state = (Beginning.FIRST, None)
        assert len(await popped(client, consumerGroup="H")) > 0


@pytest.mark.slow
async def test_delayed_messages_wait_until_a_replica_holding_them_may_lead(
    tmp_path: Path, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were skipped for ever, in the replicated state."""
    monkeypatch.setattr(RetentionFloor, "first_pos", lambda _: NOTHING)  # as on a disk that is nearly full
    async with broker_client(tmp_path, **SMALL) as client:
        assert (await client.create_topic("Late", 1)).code == 0
        assert (await client.send("Late", b"waits", i=properties(DELAY="2"))).code == 0
        await short_log(client, tmp_path / "commitlog")
        await trio.sleep(5.5)  # level 2 is due after five seconds
        assert int((await client.info())["raftmq.delayedExpired"]) == 0
        others.state = (Beginning.FIRST, None)
        await client.wait_for(lambda info: int(info["raftmq.delayedExpired"]) == 1)
