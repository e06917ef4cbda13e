"""Clients that use TLS, those that do not, and certificates that change, on real sockets."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from structlog.testing import capture_logs

from mq.broker.security import StartRefused
from mq.client import Message, MessageQueue, Producer, PullConsumer, RemotingSettings
from mq.client.errors import ConnectFailed, ConnectionLost
from mq.client.net.connection import open_connection
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.certificates import Authority
from tests.support.running_broker import Client, RunningBroker, limited, pull_ext, running, send_ext
from tests.support.waiting import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def connected(broker: RunningBroker, tls: ssl.SSLContext | None) -> Client:
    host, port = broker.settings.listen_address
    stream: Any = await trio.open_tcp_stream(host, port)
    broker.streams.append(stream)
    if tls is not None:
        stream = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
        await stream.do_handshake()
    return Client(cast("trio.SocketStream", stream))


async def test_tls_and_plaintext_clients_share_one_port(tmp_path: Path, authority: Authority) -> None:
    async with running(tmp_path / "n0", **authority.settings("permissive")) as broker:
        for tls in (authority.client(), None, authority.client()):
            client = await connected(broker, tls)
            assert (await client.send(body=b"x" * 100)).code == ResponseCode.SUCCESS
            await client.stream.aclose()


async def test_messages_larger_than_a_record_and_many_at_once(tmp_path: Path, authority: Authority) -> None:
    """What the library has decrypted and no event tells of is served as well."""
    async with running(tmp_path / "n0", **authority.settings("permissive"), pull_bytes_max=8 * 1024 * 1024) as broker:
        client = await connected(broker, authority.client())
        sizes = [1, 16_383, 16_384, 16_385, 65_535, 65_536, 200_000, 1_000_000]
        bodies = [bytes([number]) * size for number, size in enumerate(sizes * 2)]
        posted = [await client.post(RequestCode.SEND_MESSAGE_V2, send_ext("T"), body) for body in bodies]
        for opaque in posted:
            assert (await client.answer(opaque)).code == ResponseCode.SUCCESS
        found: list[int] = []
        while len(found) < len(posted):
            answer = await client.pull(offset=len(found))
            found += [len(record.body) for record in answer.records]
        assert found == sizes * 2


async def test_slow_client_gets_all_output(tmp_path: Path, authority: Authority) -> None:
    """Writes that the kernel does not take whole are repeated with the same bytes."""
    async with running(tmp_path / "n0", **authority.settings("permissive"), pull_bytes_max=8 * 1024 * 1024) as broker:
        client = await connected(broker, authority.client())
        await client.send(body=b"x" * 1_000_000)
        posted = [await client.post(RequestCode.PULL_MESSAGE, pull_ext()) for _ in range(20)]
        other = await connected(broker, None)
        await other.wait_for(lambda info: int(info["raftmq.unreadBytes"]) > 1_000_000)
        for opaque in posted:
            (record, *_) = (await client.answer(opaque)).records
            assert record.body == b"x" * 1_000_000


async def test_log_reports_clients_that_leave_during_the_handshake(tmp_path: Path, authority: Authority) -> None:
    """For example because it does not accept the certificate; a place in the source of OpenSSL helps nobody."""
    with capture_logs() as logs:
        async with running(tmp_path / "n0", tls=authority.client(), **authority.settings("enforcing")) as broker:
            host, port = broker.settings.listen_address
            stream = await trio.open_tcp_stream(host, port)
            broker.streams.append(stream)
            hello = ssl.MemoryBIO()
            client = authority.client().wrap_bio(ssl.MemoryBIO(), hello, server_hostname=host)
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            await stream.send_all(hello.read())
            await stream.send_eof()
            other = await broker.connect()

            async def is_logged() -> bool:
                await other.info()
                return any(each["event"] == "tls_failed" for each in logs)

            await until(is_logged)
    (failed,) = [each for each in logs if each["event"] == "tls_failed"]
    assert "ssl.c" not in failed["reason"]
    assert "closed" in failed["reason"]


async def test_plaintext_client_is_disconnected_when_tls_is_required(tmp_path: Path, authority: Authority) -> None:
    settings = authority.settings("enforcing")
    with capture_logs() as logs:
        async with running(tmp_path / "n0", tls=authority.client(), **settings) as broker:
            client = await connected(broker, authority.client())
            assert (await client.send()).code == ResponseCode.SUCCESS
            plain = await connected(broker, None)
            with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError, EOFError, AssertionError)):
                await plain.send()
            assert (await client.send()).code == ResponseCode.SUCCESS
    failed = [each for each in logs if each["event"] == "tls_failed"]
    assert failed
    assert failed[0]["reason"] in ("wrong version number", "http request", "unknown protocol")


async def test_error_without_tls_suggests_tls(tmp_path: Path, authority: Authority) -> None:
    async with running(tmp_path / "n0", tls=authority.client(), **authority.settings("enforcing")) as broker:
        connection = await open_connection(broker.settings.listen)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            with pytest.raises(ConnectionLost, match="before it sent anything; does it require TLS"):
                await connection.request(RequestCode.GET_BROKER_RUNTIME_INFO)


async def test_error_with_tls_suggests_a_server_without_tls(tmp_path: Path, authority: Authority) -> None:
    async with running(tmp_path / "n0") as broker:
        with pytest.raises(ConnectFailed, match="during the TLS handshake; does it use TLS"):
            await open_connection(broker.settings.listen, tls=authority.client())


async def test_tls_client_on_a_port_without_tls_is_logged(tmp_path: Path, authority: Authority) -> None:
    with capture_logs() as logs:
        async with running(tmp_path / "n0") as broker:
            with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
                await connected(broker, authority.client())
            assert (await (await connected(broker, None)).send()).code == ResponseCode.SUCCESS
    (bad,) = [each for each in logs if each["event"] == "bad_frame"]
    assert "speaks TLS" in bad["error"]


async def test_clients_without_a_required_certificate_are_refused(tmp_path: Path, authority: Authority) -> None:
    settings = authority.settings("permissive", tls_clients_ca=authority.file)
    async with running(tmp_path / "n0", **settings) as broker:
        client = await connected(broker, authority.client(certificate=authority.sign("client", "someone")))
        assert (await client.send()).code == ResponseCode.SUCCESS
        with pytest.raises((trio.BrokenResourceError, EOFError, AssertionError)):
            await (await connected(broker, authority.client())).send()
        assert (await client.send()).code == ResponseCode.SUCCESS


async def test_certificate_is_replaced_while_the_broker_runs(tmp_path: Path, authority: Authority) -> None:
    limits = limited(upkeep={"refresh_files_seconds": 0.01})
    settings = authority.settings("permissive")
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with capture_logs() as logs:
        async with running(tmp_path / "n0", limits=limits, **settings) as broker:
            old = await connected(broker, authority.client())
            settings["tls_certificate"].write_text("no certificate")

            async def is_noted() -> bool:
                await old.info()
                return any(each["event"] == "certificate_unusable" for each in logs)

            await until(is_noted)
            assert (await (await connected(broker, authority.client())).send()).code == ResponseCode.SUCCESS
            certificate, key = other.sign("new", "127.0.0.1")
            settings["tls_key"].write_bytes(key.read_bytes())
            settings["tls_certificate"].write_bytes(certificate.read_bytes())

            async def is_read() -> bool:
                await old.info()
                return any(each["event"] == "certificate_read" for each in logs)

            await until(is_read)
            assert (await (await connected(broker, other.client())).send()).code == ResponseCode.SUCCESS
            assert (await old.send()).code == ResponseCode.SUCCESS, "connections that stand go on"


@pytest.mark.parametrize("what", ["missing", "no certificate", "another key"])
async def test_broker_does_not_start_without_its_certificate(tmp_path: Path, authority: Authority, what: str) -> None:
    settings = authority.settings("permissive")
    if what == "missing":
        settings["tls_certificate"].unlink()
    elif what == "no certificate":
        settings["tls_certificate"].write_text("nothing")
    else:
        settings["tls_key"] = authority.sign("other", "127.0.0.1")[1]
    with pytest.raises(ExceptionGroup) as caught:
        async with running(tmp_path / "n0", **settings):
            pass
    assert caught.group_contains(StartRefused, match=r"server\.pem")


async def test_sdk_and_name_servers_use_tls(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.sign("names", "127.0.0.1")
    names = NamesrvSettings(
        listen_host="127.0.0.1",
        listen_port=0,
        data_dir=None,
        metrics_listen="off",
        tls_mode="enforcing",
        tls_certificate=certificate,
        tls_key=key,
    )
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, names)
        namesrv = f"{host}:{port}"
        settings = authority.settings("permissive", tls_namesrv=True, tls_namesrv_ca=authority.file)
        async with running(tmp_path / "n0", namesrv=namesrv, **settings) as broker:
            await (await connected(broker, authority.client())).create_topic("T", 1)
            remoting = RemotingSettings(tls=authority.client())
            async with Producer(namesrv, "P", remoting=remoting) as producer:
                result = await producer.send(Message("T", b"hello"))
            async with PullConsumer(namesrv, "G", consume_from="first", remoting=remoting) as consumer:
                await consumer.assign([MessageQueue("T", "broker-a", result.queue.queue_id)])
                (message,) = await consumer.poll(timeout=60.0)
                assert message.body == b"hello"
            with pytest.raises(ConnectFailed):
                await open_connection(namesrv, tls=ssl.create_default_context())
        nursery.cancel_scope.cancel()
