"""What brokers say of requests that they have no handler for."""

from __future__ import annotations

from pathlib import Path

from mq.broker.net.not_served import why_not_served
from mq.protocol.codes import ResponseCode
from tests.support.running_broker import broker_client


def test_refused_master_requests_name_the_command_to_use() -> None:
    assert "`raftmq status`" in why_not_served(907)
    assert "`raftmq group transfer`" in why_not_served(1002)
    assert "`raftmq user`" in why_not_served(50)


def test_unknown_code_is_reported() -> None:
    assert why_not_served(9999) == " request type 9999 not supported"


async def test_broker_names_the_reason_of_unsupported_requests(tmp_path: Path) -> None:
    async with broker_client(tmp_path / "n0") as client:
        answer = await client.request(907)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "neither masters nor slaves" in (answer.remark or "")
