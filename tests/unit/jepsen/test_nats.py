"""The trial of a system that is not ours, against a small server that speaks as NATS does."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import trio

from checkers.verdict import EXIT_CANNOT_RUN
from jepsen.nats.__main__ import BEGIN, HEAD, main
from jepsen.nats.client import NatsClient, NatsError, open_nats
from jepsen.nats.servers import configuration
from jepsen.nats.trial import Counts, counts_of
from jepsen.planted_bugs import PAGE, put_lines
from tests.unit.jepsen.histories import Script


class FakeStream:
    """A stream in memory; ``listens`` false: nobody answers for it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.listens = True

    async def serve(self, stream: trio.SocketStream) -> None:
        await stream.send_all(b'INFO {"version":"fake"}\r\nPING\r\n')
        lines = bytearray()
        while chunk := await stream.receive_some():
            lines += chunk
            while (published := self._next(lines)) is not None:
                subject, inbox, body = published
                for piece in self._answer(subject, inbox, body):
                    await stream.send_all(piece)

    def _next(self, received: bytearray) -> tuple[str, str, bytes] | None:
        while (end := received.find(b"\r\n")) >= 0:
            line = bytes(received[:end]).decode()
            if not line.startswith("PUB "):
                del received[: end + 2]
                continue
            _, subject, inbox, size = line.split()
            if len(received) < (whole := end + 2 + int(size) + 2):
                return None
            body = bytes(received[end + 2 : whole - 2])
            del received[:whole]
            return subject, inbox, body
        return None

    def _answer(self, subject: str, inbox: str, body: bytes) -> list[bytes]:
        if not self.listens:
            head = b"NATS/1.0 503\r\n\r\n"
            return [f"HMSG {inbox} 1 {len(head)} {len(head)}\r\n".encode() + head + b"\r\n"]
        told = json.dumps(self._told(subject, body)).encode()
        head = f"MSG {inbox} 1 {len(told)}\r\n".encode()
        whole = b"PING\r\nMSG _INBOX.jepsen.old 1 2\r\n{}\r\n" + head + told + b"\r\n"
        return [whole[:40], whole[40:]]

    def _told(self, subject: str, body: bytes) -> dict[str, object]:
        if subject == "jepsen.log":
            self.bodies.append(body)
            return {"stream": "LOG", "seq": len(self.bodies)}
        if "STREAM.INFO" in subject:
            replicas = [{"name": "n1", "current": True}, {"name": "n2", "current": False}]
            return {"state": {"first_seq": 1, "last_seq": len(self.bodies)}, "cluster": {"replicas": replicas}}
        sequence = json.loads(body)["seq"]
        if sequence > len(self.bodies):
            return {"error": {"code": 404, "description": "no message found"}}
        return {"message": {"seq": sequence, "data": base64.b64encode(self.bodies[sequence - 1]).decode()}}


@pytest.mark.trio
async def test_what_is_appended_is_read_back() -> None:
    fake = FakeStream()

    async def talk(client: NatsClient) -> None:
        assert [await client.append(b"one"), await client.append(b"two\r\n")] == [1, 2]
        assert await client.stream_state() == (1, 2, 1)
        assert await client.read(2) == b"two\r\n"
        assert await client.read(3) is None
        fake.listens = False
        with pytest.raises(NatsError, match="503: nobody answers"):
            await client.append(b"three")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, fake.serve, 0)
        with trio.fail_after(30):
            async with open_nats("127.0.0.1", listeners[0].socket.getsockname()[1]) as client:
                await talk(client)
        nursery.cancel_scope.cancel()
    assert fake.bodies == [b"one", b"two\r\n"]


@pytest.mark.trio
async def test_server_that_hangs_up_is_a_broken_connection() -> None:
    async with trio.open_nursery() as nursery:

        async def hang_up(stream: trio.SocketStream) -> None:
            await stream.send_all(b"INFO {}\r\n")

        listeners = await nursery.start(trio.serve_tcp, hang_up, 0)
        with trio.fail_after(30), pytest.raises(trio.BrokenResourceError):
            async with open_nats("127.0.0.1", listeners[0].socket.getsockname()[1]) as client:
                await client.append(b"one")
        nursery.cancel_scope.cancel()


def test_lost_are_those_that_were_acknowledged_and_are_not_there() -> None:
    script = Script()
    script.sent("1.0.0", 0)
    script.sent("1.1.0", 0)  # the number was given twice, since the first message is gone
    script.failed("1.2.0", 1)
    script.final(["1.1.0"], node="n0")
    assert counts_of(script.history()) == Counts(acknowledged=2, lost=1)


def test_a_server_syncs_always_only_if_configured() -> None:
    ports = {"n0": (1, 2), "n1": (3, 4)}
    assert "sync_interval" not in configuration("n0", ports, Path("store"), "default")
    told = configuration("n0", ports, Path("store"), "always")
    assert "sync_interval: always" in told
    assert 'routes: ["nats://127.0.0.1:4"]' in told


def test_without_a_server_the_command_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--server", "no-such-server"]) == EXIT_CANNOT_RUN
    assert "apt-get install nats-server" in capsys.readouterr().err


def test_page_has_the_table() -> None:
    assert put_lines(PAGE.read_text(), [], begin=BEGIN, head=HEAD)
