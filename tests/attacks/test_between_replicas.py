"""Somebody on the line between two replicas, on the port of clients, where requests are handed to the leader."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker.replication.peer_authentication import PeerAuthentication
from mq.broker.replication.peer_connection import PeerConnection
from mq.protocol.codes import ResponseCode
from raftlog import Reactor
from raftlog.net.replication_tls import caller_context
from raftlog.net.secret_file import read_secrets
from tests.free_ports import free_ports
from tests.support.certificates import Authority
from tests.support.man_in_the_middle import Wire
from tests.support.replica_client import NODE, add_learner, authenticate
from tests.support.running_broker import RunningBroker, running


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Caller:
    """The connection of the replica n9 to a broker, which it reaches at another address than the broker thinks."""

    def __init__(self, reactor: Reactor, broker: RunningBroker, port: int) -> None:
        settings = broker.settings
        address = f"127.0.0.1:{port}"
        authentication = PeerAuthentication(
            identity=settings.identity,
            node_id=NODE,
            address=address,
            secrets=lambda: read_secrets(str(settings.secret_path)),
            members=lambda: ("n0", NODE),
            random_bytes=os.urandom,
            tls=caller_context,
        )
        self.outcome = ""
        self._ended = trio.Event()
        self._connection = PeerConnection(
            reactor,
            address,
            authentication,
            on_connected=lambda: self._end("connected"),
            on_response=lambda answer, body: None,
            on_closed=self._end,
        )
        self._connection.dial()

    async def wait(self) -> str:
        """Whether it was let in, or why not."""
        with trio.fail_after(20):
            await self._ended.wait()
        self._connection.close()
        return self.outcome

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self._ended.set()


@asynccontextmanager
async def broker_with_tls(
    directory: Path, authority: Authority, mode: str, **given: Any
) -> AsyncIterator[RunningBroker]:
    """A broker with n9 as another member."""
    async with running(directory / "n0", tls=authority.client(), **authority.settings(mode), **given) as broker:
        await add_learner(await broker.connect())
        yield broker


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_interceptor_with_another_certificate_gets_no_proof(
    tmp_path: Path, authority: Authority, mode: str
) -> None:
    """He could read what clients of the other replica send, and change it: forwarded requests have no tags."""
    (tmp_path / "other").mkdir()
    certificate, key = Authority(tmp_path / "other").sign("n0", "127.0.0.1")
    async with broker_with_tls(tmp_path, authority, mode) as broker, trio.open_nursery() as nursery:
        reactor = Reactor()
        nursery.start_soon(reactor.run)
        there = broker.settings.listen_address[1]
        assert await Caller(reactor, broker, there).wait() == "connected"
        (between,) = free_ports(1)
        shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shown.load_cert_chain(certificate, key)
        wire = Wire(there, shown)
        await nursery.start(partial(wire.serve, between))
        assert (await Caller(reactor, broker, between).wait()).startswith("authentication failed")
        assert b"challenge" in wire.seen, "it read what both said first"
        assert NODE.encode() not in wire.seen, "and no more"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("level", [1, 2])
async def test_proof_bound_to_no_certificate_is_refused(tmp_path: Path, authority: Authority, level: int) -> None:
    """Somebody in between could say that the caller is older software, of which there is none from level 2 on."""
    async with broker_with_tls(tmp_path, authority, "permissive", format_level_max=level) as broker:
        answer = await authenticate(broker, await broker.connect())
        if level == 1:
            assert answer.code == ResponseCode.SUCCESS, answer
        else:
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "authentication failed")
