"""Clients that stop in the middle of a request or read no answer: others go on, and memory stays bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from jepsen.wire import Wire, open_wire
from mq.local_cluster import HOST, Ports
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import encode_prefix
from mq.protocol.requests.broker import KVTable
from mq.protocol.requests.namesrv import Route
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.protocol.requests.topics import DataVersion, TopicConfig
from mq.protocol.wire.encoding import encode_request
from tests.free_ports import free_ports
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.cold_processes]

MIB = 1024 * 1024
SECONDS_MAX = 120.0
SEND = {"a": "P", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", "j": 0, "k": "false"}


@contextmanager
def started(directory: Path, *arguments: str) -> Iterator[int]:
    """The process id of a server."""
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "mq.cli", *arguments], stdout=log, stderr=log)
        try:
            yield process.pid
            assert process.poll() is None, f"it ended with {process.returncode}"
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def broker(directory: Path, **settings: int) -> Iterator[tuple[int, int]]:
    """The process id and the port of a broker alone in its group."""
    ports = Ports.free(1)
    peers = ["--peers", f"n0@{HOST}:{ports.replication[0]}", "--listen", f"{HOST}:{ports.clients[0]}"]
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with started(directory, "broker", "--data-dir", str(directory / "n0"), *peers, *given) as process_id:
        yield process_id, ports.clients[0]


def peak_bytes(process_id: int) -> int:
    """The most memory that a process ever had."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


async def wait_up(port: int, answered: Callable[[Wire], Awaitable[bool]]) -> None:
    async def up() -> bool:
        done = False
        try:
            async with open_wire(HOST, port) as wire:
                done = await answered(wire)
        except* OSError:
            pass
        return done

    await until(up)


async def stored(wire: Wire, nbytes: int) -> str:
    """Store a message; returns its id."""
    with trio.fail_after(SECONDS_MAX):
        answer, _ = await wire.ask(RequestCode.SEND_MESSAGE_V2, SEND, bytes(nbytes))
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer.ext["msgId"]


async def is_storing(wire: Wire) -> bool:
    answer, _ = await wire.ask(RequestCode.SEND_MESSAGE_V2, SEND, b"first")
    return answer.code == ResponseCode.SUCCESS


async def figure(wire: Wire, name: str) -> int:
    _, body = await wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return int(KVTable.decode(body).table[f"raftmq.{name}"])


async def talk(port: int, data: bytes) -> None:
    """Send, never read, and stay until the other side hangs up."""
    stream = await trio.open_tcp_stream(HOST, port)
    try:
        await stream.send_all(data)
        await trio.sleep_forever()
    except trio.BrokenResourceError:
        pass
    finally:
        await trio.aclose_forcefully(stream)


async def ask_on(stream: trio.SocketStream, code: int) -> None:
    """Ask, never read, and ask again until the other side hangs up."""
    requests = encode_request(code, 1) * 1000
    try:
        while True:
            await stream.send_all(requests)
    except trio.BrokenResourceError:
        pass
    finally:
        await trio.aclose_forcefully(stream)


async def is_answering(wire: Wire) -> bool:
    answer, _ = await wire.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    return answer.code == ResponseCode.SUCCESS


async def register(wire: Wire, group: str, body: bytes) -> int:
    """Register the leader of a broker group; returns the answer's code."""
    fields = {"brokerName": group, "brokerAddr": f"{group}:1", "clusterName": "c", "brokerId": 0, "haServerAddr": ""}
    with trio.fail_after(SECONDS_MAX):
        answer, _ = await wire.ask(RequestCode.REGISTER_BROKER, fields, body)
    return answer.code


async def tries_until_stored(port: int, nbytes: int) -> int:
    """Store a message with a new connection for each try; returns how many tries were cut off.

    On a busy machine, the memory may not be free again within the time for which a request waits for it.
    """
    cut_off = 0
    with trio.fail_after(SECONDS_MAX):
        while True:
            is_stored = False
            try:
                async with open_wire(HOST, port) as wire:
                    await stored(wire, nbytes)
                    is_stored = True
            except* trio.BrokenResourceError:
                pass
            if is_stored:
                return cut_off
            cut_off += 1


async def _half_open(process_id: int, port: int) -> None:
    await wait_up(port, is_storing)
    header = encode_request(RequestCode.SEND_MESSAGE_V2, 1, ext={k: str(v) for k, v in SEND.items()})[8:]
    most = encode_prefix(0, len(header), 16 * MIB - len(header) - 8) + header + bytes(15 * MIB)
    async with open_wire(HOST, port) as wire, trio.open_nursery() as nursery:
        await stored(wire, 3 * MIB)
        before = peak_bytes(process_id)
        for _ in range(200):
            nursery.start_soon(talk, port, most)
        cut_off = 0

        async def dropped() -> bool:
            nonlocal cut_off
            await stored(wire, 100)
            cut_off += await tries_until_stored(port, 3 * MIB)
            return await figure(wire, "connectionsDropped") == 200 + cut_off

        await until(dropped)
        assert await figure(wire, "unfinishedBytes") == await figure(wire, "unfinishedWaiting") == 0
        grown = peak_bytes(process_id) - before
        assert grown < 160 * MIB, f"it took {grown} bytes more"
        nursery.cancel_scope.cancel()


def test_incomplete_requests_are_closed(tmp_path: Path) -> None:
    with broker(tmp_path, partial_request_bytes_max=32 * MIB, partial_request_seconds_max=3) as (process_id, port):
        trio.run(_half_open, process_id, port)


async def _unread(process_id: int, port: int) -> None:
    await wait_up(port, is_storing)
    async with open_wire(HOST, port) as wire, trio.open_nursery() as nursery:
        message_id = await stored(wire, 1 * MIB)
        _, offset = message_id[:16], int(message_id[16:32], 16)
        before = peak_bytes(process_id)
        view = encode_request(RequestCode.VIEW_MESSAGE_BY_ID, 1, ext={"topic": "T", "offset": str(offset)})
        for _ in range(100):
            nursery.start_soon(talk, port, view * 500)

        async def dropped() -> bool:
            await stored(wire, 100)
            return await figure(wire, "connectionsDropped") >= 60

        await until(dropped)
        for _ in range(20):
            await stored(wire, 100_000)
        answer, body = await wire.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "T", "offset": offset})
        assert (answer.code, len(body) > MIB) == (ResponseCode.SUCCESS, True)
        grown = peak_bytes(process_id) - before
        assert grown < 200 * MIB, f"it took {grown} bytes more"
        nursery.cancel_scope.cancel()


def test_unread_answers_take_bounded_memory_of_a_broker(tmp_path: Path) -> None:
    with broker(tmp_path, unread_replies_bytes_max=32 * MIB) as (process_id, port):
        trio.run(_unread, process_id, port)


def topics(group: str, count: int, length: int) -> bytes:
    names = (f"{group}-{number}".ljust(length, "x") for number in range(count))
    body = RegisterBrokerBody(topics={name: TopicConfig(name) for name in names}, data_version=DataVersion(1))
    return body.encode()


async def _registrations(process_id: int, port: int) -> None:
    await wait_up(port, is_answering)
    async with open_wire(HOST, port) as wire, trio.open_nursery() as nursery:
        assert await register(wire, "real", topics("real", 1000, 20)) == ResponseCode.SUCCESS
        before = peak_bytes(process_id)
        endless = encode_prefix(0, 200, 16 * MIB - 400) + bytes(15 * MIB)
        for _ in range(100):
            nursery.start_soon(talk, port, endless)

        async def attack(number: int) -> None:
            codes = set()
            try:
                async with open_wire(HOST, port) as other:
                    for part in range(5):
                        group = f"{number}-{part}"
                        codes.add(await register(other, group, topics(group, 10_000, 300)))
                    await register(
                        other,
                        "tiny",
                        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{'
                        + b",".join(b'"%d":{"topicName":""}' % each for each in range(500_000))
                        + b"}}}",
                    )
            except* trio.BrokenResourceError:
                pass  # who sends so much beside those that never end may be hung up on, as they are
            assert codes <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}

        async with trio.open_nursery() as attackers:
            for number in range(10):
                attackers.start_soon(attack, number)
            for _ in range(100):
                nursery.start_soon(talk, port, encode_request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 1) * 100)
        answer, body = await wire.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "real-7".ljust(20, "x")})
        assert answer.code == ResponseCode.SUCCESS
        assert [each.broker_name for each in Route.decode(body).broker_datas] == ["real"]
        assert await register(wire, "real", topics("real", 1000, 20)) == ResponseCode.SUCCESS
        grown = peak_bytes(process_id) - before
        assert grown < 600 * MIB, f"it took {grown} bytes more"
        nursery.cancel_scope.cancel()


def test_registrations_of_unknown_brokers_take_bounded_memory(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with started(tmp_path, "namesrv", "--listen", f"{HOST}:{port}", "--data-dir", str(tmp_path / "data")) as process_id:
        trio.run(_registrations, process_id, port)


async def _unread_lists(process_id: int, port: int) -> None:
    await wait_up(port, is_answering)
    async with open_wire(HOST, port) as wire, trio.open_nursery() as nursery:
        for part in ("a", "b", "c"):
            assert await register(wire, part, topics(part, 16_000, 300)) == ResponseCode.SUCCESS
        with trio.fail_after(SECONDS_MAX):
            answer, names = await wire.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert answer.code == ResponseCode.SUCCESS
        assert len(names) > 13 * MIB
        before = peak_bytes(process_id)
        streams = [await trio.open_tcp_stream(HOST, port) for _ in range(100)]
        for stream in streams:
            await stream.send_all(encode_request(RequestCode.GET_BROKER_CLUSTER_INFO, 1))
            assert await stream.receive_some()
        os.kill(process_id, signal.SIGSTOP)  # so that all of them ask at the same moment
        for stream in streams:
            await stream.send_all(encode_request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 1))
            nursery.start_soon(ask_on, stream, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        os.kill(process_id, signal.SIGCONT)
        with trio.fail_after(SECONDS_MAX):
            while len(nursery.child_tasks) > 10:  # there is no room for more
                assert await is_answering(wire)
        grown = peak_bytes(process_id) - before
        assert grown < 250 * MIB, f"it took {grown} bytes more"
        nursery.cancel_scope.cancel()


def test_unread_lists_take_bounded_memory_of_a_name_server(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with started(tmp_path, "namesrv", "--listen", f"{HOST}:{port}", "--data-dir", str(tmp_path / "data")) as process_id:
        trio.run(_unread_lists, process_id, port)
