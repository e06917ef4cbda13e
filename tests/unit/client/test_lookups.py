"""Looking a message up by id, with groups that do not answer."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mq.client.errors import BrokerError, NoRoute, RequestTimeout
from mq.client.lookups import message_by_id
from mq.client.net.client_core import ClientCore
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.records import decode_record
from mq.protocol.requests.namesrv import BrokerData, ClusterInfo
from tests.unit.client.consuming import stored

pytestmark = pytest.mark.anyio

RECORD = stored(b"x").record("T", 0, 7)
ID = decode_record(memoryview(RECORD)).offset_message_id
CLUSTER = ClusterInfo(brokers={name: BrokerData(name, {0: f"10.0.0.{name}:1"}) for name in ("1", "2", "3")})


class Brokers:
    """Brokers by address: one with the record, others without it or silent."""

    def __init__(self, having: str, silent: str = "") -> None:
        self._having = f"10.0.0.{having}:1"
        self._silent = f"10.0.0.{silent}:1"

    async def call(self, address: str, code: int, ext: dict[str, str]) -> tuple[Any, bytes]:
        if address == self._silent:
            raise RequestTimeout(address, code, 3.0)
        if address == self._having:
            return None, RECORD
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "no message begins there", address)


def core(having: str, silent: str = "") -> ClientCore:
    return cast("ClientCore", Brokers(having, silent))


@pytest.mark.parametrize("silent", ["", "1", "3"])
async def test_lookup_asks_all_groups_if_none_matches_the_id(silent: str) -> None:
    found = await message_by_id(core("2", silent), ID, CLUSTER)
    assert found is not None
    assert (found.body, found.queue.broker_name) == (b"x", "2")


async def test_message_is_not_missing_while_a_group_is_silent() -> None:
    with pytest.raises(RequestTimeout):
        await message_by_id(core("", "1"), ID, CLUSTER)
    with pytest.raises(NoRoute, match="no other replica has the message"):
        await message_by_id(core(""), ID, CLUSTER)
