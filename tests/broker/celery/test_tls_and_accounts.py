"""Connections of kombu with TLS and accounts, to servers in threads of this process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.from_thread
import kombu
import pytest
import trio

import raftmq.celery  # noqa: F401 - makes the URLs known
from mq.client import BrokerError
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.codes import RequestCode
from mq.protocol.requests.quota_attributes import Quota
from mq.protocol.requests.quotas import QuotaList, UserQuota
from mq.protocol.requests.users import UserInfo
from tests.support.certificates import Authority
from tests.support.guarded import guarded
from tests.support.running_broker import Client, running

SECRET = "secret-of-shop"
ACCOUNTS = f"""accounts:
  - {{accessKey: shopadmin, secretKey: {SECRET}, admin: true}}
  - accessKey: shopuser
    secretKey: {SECRET}
    topicPerms: ["celery%q_made=PUB|SUB"]
    groupPerms: ["celery%q_made=SUB"]
"""


@asynccontextmanager
async def guarded_servers(directory: Path, authority: Authority) -> AsyncIterator[str]:
    accounts = directory / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    settings = authority.settings("enforcing", "127.0.0.1")
    names = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None, metrics_listen="off", **settings)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, names)
        async with running(
            directory / "n0",
            keys=("shopadmin", SECRET),
            tls=authority.client(),
            namesrv=f"{host}:{port}",
            acl_file=accounts,
            tls_namesrv=True,
            tls_namesrv_ca=authority.file,
            **settings,
        ):
            yield f"{host}:{port}?ssl_ca_certs={authority.file}"
        nursery.cancel_scope.cancel()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with anyio.from_thread.start_blocking_portal("trio") as portal:
        servers = guarded_servers(tmp_path, Authority(tmp_path))
        with portal.wrap_async_context_manager(servers) as found:
            yield found


def test_only_administrators_declare_new_queues(address: str) -> None:
    with kombu.Connection(f"raftmq://shopadmin:{SECRET}@{address}") as connection:
        queue = connection.SimpleQueue("made")
        queue.put("from the administrator")
        message = queue.get(timeout=10)
        message.ack()
        assert message.payload == "from the administrator"
        queue.close()
    with kombu.Connection(f"raftmq://shopuser:{SECRET}@{address}") as connection:
        queue = connection.SimpleQueue("made")
        queue.put("from a user")
        assert queue.get(timeout=10).payload == "from a user"
        queue.close()
        with pytest.raises(BrokerError, match="shopuser"):
            connection.channel().queue_declare("another")


def test_wrong_secrets_and_no_tls(address: str) -> None:
    with kombu.Connection(f"raftmq://shopadmin:wrong-secret@{address}") as connection, pytest.raises(BrokerError):
        connection.channel().queue_declare("made")
    plain = address.partition("?")[0]
    connection = kombu.Connection(f"raftmq://shopadmin:{SECRET}@{plain}", connect_timeout=1)
    with pytest.raises(connection.connection_errors):
        connection.connect()


@asynccontextmanager
async def servers_with_a_limited_user(directory: Path) -> AsyncIterator[tuple[str, Client]]:
    names = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None, metrics_listen="off")
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, names)
        async with guarded(directory, level=8, namesrv=f"{host}:{port}") as (_, admin):
            body = UserInfo(name="shopuser", password=SECRET, user_type="Super").encode()
            assert (await admin.request(RequestCode.AUTH_CREATE_USER, {"username": "shopuser"}, body)).code == 0
            quota = UserQuota(quota=Quota(produce_messages=5)).encode()
            assert (await admin.request(RequestCode.PUT_USER_QUOTA, {"username": "shopuser"}, quota)).code == 0
            yield f"{host}:{port}", admin
        nursery.cancel_scope.cancel()


def test_quota_of_the_user_in_the_url_applies(tmp_path: Path) -> None:
    with (
        anyio.from_thread.start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(servers_with_a_limited_user(tmp_path)) as (address, admin),
        kombu.Connection(f"raftmq://shopuser:{SECRET}@{address}") as connection,
    ):
        queue = connection.SimpleQueue("made")
        start = time.monotonic()
        for number in range(13):
            queue.put(number)
        assert time.monotonic() - start >= 1.0  # 5 at once, one that owes, 5 each second
        assert [queue.get(timeout=10).payload for _ in range(13)] == [*range(13)]
        queue.close()
        found = QuotaList.decode(portal.call(admin.request, RequestCode.LIST_QUOTAS).body)
        assert [(each.kind, each.name, each.direction) for each in found.throttled] == [("user", "shopuser", "produce")]
