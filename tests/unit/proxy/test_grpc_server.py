"""The gRPC server with its tasks: methods, deadlines, handshakes, slow clients, drain. In memory, in virtual time."""

from __future__ import annotations

import hashlib
import ssl
import time
from pathlib import Path

import pytest
import structlog
import trio
from h2.errors import ErrorCodes
from structlog.testing import capture_logs
from trio.testing import MockClock

from mq.certificate import Certificate
from mq.proxy.grpc import BrokenCall, Call, CallRefused, GrpcLimits, OwnCertificate, SelfSigned, Status, health_methods
from tests.support.certificates import Authority
from tests.support.grpc_serving import Logged, Serving, serving

HAPROXY = b"PROXY TCP4 192.0.2.1 198.51.100.7 5000 8081\r\n"


def named(logs: Logged, event: str) -> Logged:
    return [entry for entry in logs if entry["event"] == event]


async def until_started(server: Serving, calls: int = 1) -> None:
    """Wait until so many methods have started."""
    while len(server.calls) < calls:
        await trio.testing.wait_all_tasks_blocked()


async def test_methods_are_served_by_path(autojump_clock: MockClock) -> None:
    async with serving() as server:
        client = await server.connect()
        assert (await client.unary("/raftmq.Test/Echo", b"hello")).messages == [b"hello"]
        unknown = await client.unary("/raftmq.Test/Nothing")
        assert unknown.status is Status.UNIMPLEMENTED
        assert "/raftmq.Test/Nothing is not served" in unknown.headers["grpc-message"]
        assert (await client.unary("/raftmq.Test/Refuse", b"NOT_FOUND")).status is Status.NOT_FOUND
        [call] = server.calls
        assert (call.path, call.peer, call.secure) == ("/raftmq.Test/Echo", "memory:0", False)
        counted = {(path, status.name): count for (path, status), count in server.counters.calls.items()}
    assert counted == {
        ("/raftmq.Test/Echo", "OK"): 1,
        ("/raftmq.Test/Refuse", "NOT_FOUND"): 1,
        ("unknown", "UNIMPLEMENTED"): 1,
    }
    assert server.counters.connections == server.counters.streams == 0


async def test_bug_of_a_method_ends_its_call_only(autojump_clock: MockClock) -> None:
    with capture_logs() as logs:
        async with serving() as server:
            client = await server.connect()
            assert (await client.unary("/raftmq.Test/Fail")).status is Status.INTERNAL
            assert (await client.unary("/raftmq.Test/Echo", b"on")).messages == [b"on"]
    [entry] = named(logs, "call_failed")
    assert entry["path"] == "/raftmq.Test/Fail"


async def test_refusal_of_a_task_of_a_method_is_its_refusal(autojump_clock: MockClock) -> None:
    async def method(call: Call) -> None:
        async def task() -> None:
            raise CallRefused(Status.ABORTED, "from a task")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)

    async with serving(methods={"/a/B": method}) as server:
        client = await server.connect()
        answer = await client.unary("/a/B")
    assert (answer.status, answer.headers["grpc-message"]) == (Status.ABORTED, "from a task")


async def test_deadline_ends_a_call(autojump_clock: MockClock) -> None:
    async with serving() as server:
        client = await server.connect()
        began = trio.current_time()
        answer = await client.unary("/raftmq.Test/Wait", grpc_timeout="1500m")
        assert answer.status is Status.DEADLINE_EXCEEDED
        assert trio.current_time() - began == pytest.approx(1.5, abs=0.01)
        assert server.calls[0].deadline == pytest.approx(began + 1.5, abs=0.01)
        assert server.cancelled == ["/raftmq.Test/Wait"]


async def test_call_that_its_client_cancels_is_cancelled(autojump_clock: MockClock) -> None:
    async with serving() as server:
        client = await server.connect()
        stream_id = await client.call("/raftmq.Test/Wait")
        await until_started(server)
        client.grpc.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
        assert (await client.unary("/raftmq.Test/Echo", b"on")).messages == [b"on"]
        assert server.cancelled == ["/raftmq.Test/Wait"]
        assert server.counters.calls["/raftmq.Test/Wait", Status.CANCELLED] == 1


async def test_calls_of_a_disconnected_client_are_cancelled(autojump_clock: MockClock) -> None:
    async with serving() as server:
        client = await server.connect()
        for _ in range(3):
            await client.call("/raftmq.Test/Wait")
        await until_started(server, 3)
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert server.cancelled == ["/raftmq.Test/Wait"] * 3
        assert server.counters.connections == server.counters.streams == 0


async def test_send_reports_a_disconnected_client_to_the_method(autojump_clock: MockClock) -> None:
    seen: list[type] = []

    async def method(call: Call) -> None:
        with trio.CancelScope(shield=True):
            await call.receive()
            await trio.sleep(1)
            try:
                await call.send(b"too late")
            except BrokenCall as error:
                seen.append(type(error))
                raise

    async with serving(methods={"/a/B": method}) as server:
        client = await server.connect()
        stream_id = await client.call("/a/B", b"x")
        await trio.testing.wait_all_tasks_blocked()
        client.grpc.http2.reset_stream(stream_id, ErrorCodes.CANCEL)
        await client.send()
        await trio.sleep(2)  # until the method, which cannot be cancelled, has ended
    assert seen == [BrokenCall]


async def test_large_answer_passes_small_windows(autojump_clock: MockClock) -> None:
    async with serving(GrpcLimits(output_bytes_max=20_000)) as server:
        client = await server.connect()
        answer = await client.unary("/raftmq.Test/Large", b"1000000")
    assert answer.messages == [bytes(1_000_000)]


async def test_call_without_window_is_reset(autojump_clock: MockClock) -> None:
    async with serving(GrpcLimits(send_seconds_max=30)) as server:
        client = await server.connect()
        client.grpc.reads = False
        slow = await client.call("/raftmq.Test/Large", b"100000")
        answer = await client.answer(slow)
        assert answer.reset == ErrorCodes.CANCEL
        client.grpc.http2.increment_flow_control_window(100_000)
        assert (await client.unary("/raftmq.Test/Echo", b"on")).messages == [b"on"]


async def test_connection_of_a_client_that_reads_nothing_is_closed(autojump_clock: MockClock) -> None:
    # The stream takes nothing any more, as a socket whose buffers are full.
    with capture_logs() as logs:
        async with serving(GrpcLimits(send_seconds_max=30)) as server:
            client = await server.connect()
            other = await server.connect()
            await trio.testing.wait_all_tasks_blocked()

            async def never() -> None:
                await trio.sleep_forever()

            server.listener.accepted[0].send_stream.send_all_hook = never
            await client.call("/raftmq.Test/Echo", b"x")
            await client.end()
            assert (await other.unary("/raftmq.Test/Echo", b"on")).messages == [b"on"]
    [entry] = named(logs, "client_does_not_read")
    assert entry["peer"] == "memory:0"


async def test_flood_ends_only_its_own_connection(autojump_clock: MockClock) -> None:
    with capture_logs() as logs:
        async with serving(GrpcLimits(control_frames_burst=50, control_frames_per_second=1)) as server:
            other = await server.connect()
            waiting = await other.call("/raftmq.Test/Wait", grpc_timeout="5S")
            for _ in range(3):
                client = await server.connect()
                for _ in range(60):
                    client.grpc.http2.ping(b"flooding")
                await client.send()
                await client.end()
                assert client.grpc.goaways[0][0] == ErrorCodes.ENHANCE_YOUR_CALM
            assert (await other.unary("/raftmq.Test/Echo", b"on")).messages == [b"on"]
            assert (await other.answer(waiting)).status is Status.DEADLINE_EXCEEDED
            assert server.counters.close_counts["flood"] == 3
    [entry] = named(logs, "client_floods")
    assert "PING" in entry["reason"]


async def test_connection_without_http2_is_closed(autojump_clock: MockClock) -> None:
    with capture_logs() as logs:
        async with serving() as server:
            stream = await server.listener.connect()
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            while await stream.receive_some():
                pass
    assert len(named(logs, "bad_http2")) == 1


@pytest.mark.parametrize("first", [b"P", b"\x16\x03", b"PROXY TCP4 ", b"PRI * HTTP/2.0\r\n"])
async def test_slow_handshake_is_cut_off(first: bytes, autojump_clock: MockClock) -> None:
    made = SelfSigned(["localhost"], lambda: 0)
    async with serving(GrpcLimits(handshake_seconds_max=10), tls=made) as server:
        stream = await server.listener.connect()
        await stream.send_all(first)
        began = trio.current_time()
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
        assert 10 <= trio.current_time() - began <= 13
        await stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert server.counters.connections == 0


async def test_trusted_haproxy_names_the_client_address(autojump_clock: MockClock) -> None:
    async with serving(trusts=lambda host: host == "memory") as server:
        for first in (HAPROXY, b"PROXY UNKNOWN\r\n", b""):
            client = await server.connect(first=first)
            await client.unary("/raftmq.Test/Echo", b"x")
        peers = [(call.peer, call.local_address) for call in server.calls]
    assert peers == [("192.0.2.1:5000", ("198.51.100.7", 8081)), ("memory:0", ("", 0)), ("memory:0", ("", 0))]


async def test_untrusted_haproxy_headers_are_refused(autojump_clock: MockClock) -> None:
    with capture_logs() as logs:
        async with serving() as server:
            client = await server.connect(first=HAPROXY)
            await client.end()
    [entry] = named(logs, "handshake_failed")
    assert "may not send one" in entry["reason"]


def verifying(server: SelfSigned | None = None, cafile: Path | None = None, alpn: str | None = "h2") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=cafile)
    if server is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    return context


async def test_one_port_serves_tls_and_plaintext(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("server", "localhost")
    tls = OwnCertificate(Certificate(*files, None, structlog.get_logger(), lambda: time.time_ns() // 1_000_000))
    async with serving(tls=tls) as server:
        secured = await server.connect(tls=verifying(cafile=authority.file))
        plain = await server.connect()
        for client in (secured, plain):
            assert (await client.unary("/raftmq.Test/Echo", b"x")).messages == [b"x"]
        assert [call.secure for call in server.calls] == [True, False]


async def test_self_signed_certificate_is_named_by_its_fingerprint() -> None:
    made = SelfSigned(["localhost", "127.0.0.1"], lambda: time.time_ns() // 1_000_000)
    async with serving(tls=made, trusts=lambda _: True) as server:
        client = await server.connect(first=HAPROXY, tls=verifying(made))
        assert isinstance(client.stream, trio.SSLStream)
        seen = client.stream.getpeercert(binary_form=True)
        assert (await client.unary("/raftmq.Test/Echo", b"x")).messages == [b"x"]
        [call] = server.calls
        assert (call.secure, call.peer) == (True, "192.0.2.1:5000")
    assert hashlib.sha256(seen).hexdigest() == made.fingerprint.replace(":", "").lower()


async def test_plaintext_is_refused_when_tls_is_required(autojump_clock: MockClock) -> None:
    made = SelfSigned(["localhost"], lambda: time.time_ns() // 1_000_000)
    with capture_logs() as logs:
        async with serving(tls=made, tls_required=True) as server:
            client = await server.connect()
            await client.end()
    assert named(logs, "handshake_failed")[0]["reason"] == "the client does not use TLS"


async def test_too_many_connections_are_closed(autojump_clock: MockClock) -> None:
    async with serving(GrpcLimits(connections_max=2)) as server:
        first, second, third = [await server.connect() for _ in range(3)]
        await third.end()
        assert (await first.unary("/raftmq.Test/Echo", b"x")).messages == [b"x"]
        await second.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        fourth = await server.connect()
        assert (await fourth.unary("/raftmq.Test/Echo", b"x")).messages == [b"x"]


async def test_drained_server_ends_when_its_calls_have_ended(autojump_clock: MockClock) -> None:
    async with serving(GrpcLimits(drain_seconds_max=20)) as server:
        client = await server.connect()
        idle = await server.connect()
        stream_id = await client.call("/raftmq.Test/Wait", grpc_timeout="5S")
        await until_started(server)
        began = trio.current_time()
        server.drain.set()
        assert server.calls[0].drain_event.is_set()
        await server.stopped.wait()
        assert 5 <= trio.current_time() - began <= 8
        assert server.listener.closed
        await idle.end()
        assert client.grpc.goaways
    assert server.counters.calls["/raftmq.Test/Wait", Status.DEADLINE_EXCEEDED] == 1
    assert stream_id == 1


async def test_calls_that_outlast_the_drain_end_as_unavailable(autojump_clock: MockClock) -> None:
    async with serving(GrpcLimits(drain_seconds_max=20)) as server:
        client = await server.connect()
        await client.call("/raftmq.Test/Wait")
        await until_started(server)
        server.drain.set()
        began = trio.current_time()
        await server.stopped.wait()
        assert 20 <= trio.current_time() - began <= 25
    assert server.counters.calls["/raftmq.Test/Wait", Status.UNAVAILABLE] == 1


async def test_health_is_reported_and_can_be_watched(autojump_clock: MockClock) -> None:
    ready = [True]
    health = health_methods(["a.B"], lambda: ready[0])
    async with serving(methods=health) as server:
        client = await server.connect()
        for name in (b"", b"a.B"):
            asked = b"\x0a" + bytes([len(name)]) + name if name else b""
            assert (await client.unary("/grpc.health.v1.Health/Check", asked)).messages == [b"\x08\x01"]
        assert (await client.unary("/grpc.health.v1.Health/Check", b"\x0a\x01x")).status is Status.NOT_FOUND
        stream_id = await client.call("/grpc.health.v1.Health/Watch", b"")
        answer = client.grpc.answers[stream_id]
        for state in (True, False, True):
            ready[0] = state
            await trio.sleep(3)
        server.drain.set()
        await client.answer(stream_id)
        assert answer.messages == [b"\x08\x01", b"\x08\x02", b"\x08\x01", b"\x08\x02"]
        assert answer.status is Status.OK
