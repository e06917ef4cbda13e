"""The console as a server: bytes over sockets, TLS, and requests that no browser sends."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trustme

from mq.client.net.client_core import RemotingSettings
from mq.console.app import PAGES
from mq.console.pages.visit import Page, Visit
from mq.console.server import serve
from mq.console.settings import ConsoleSettings

REMOTING = RemotingSettings(credentials=None, tls=None)


async def started(nursery: trio.Nursery, **settings: Any) -> int:
    """The port of a console whose name server does not answer."""
    chosen = ConsoleSettings.load(listen_port=0, namesrv="127.0.0.1:1", **settings)
    address = await nursery.start(partial(serve, chosen, remoting=REMOTING))
    return int(address.rpartition(":")[2])


async def exchange(port: int, request: bytes) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request)
        answer = b""
        with trio.fail_after(20):
            async for part in stream:
                answer += part
    return answer


def get(port: int, path: str = "/", *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_every_answer_has_the_headers_of_safety() -> None:
    async with trio.open_nursery() as nursery:
        port = await started(nursery)
        for path in ("/", "/healthz", "/static/console.css", "/static/console.js", "/nope", "/static/nope"):
            head = (await exchange(port, get(port, path))).partition(b"\r\n\r\n")[0].lower()
            assert b"content-security-policy: default-src 'none'; script-src 'self'" in head, path
            assert b"x-frame-options: deny" in head, path
            assert b"cache-control: no-store" in head, path
            assert b"server:" not in head, path
        nursery.cancel_scope.cancel()


async def test_paths_leave_the_directory_of_static_files_closed() -> None:
    async with trio.open_nursery() as nursery:
        port = await started(nursery)
        for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/..%2fapp.py"):
            answer = await exchange(port, get(port, path))
            assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), path
        nursery.cancel_scope.cancel()


async def test_console_survives_requests_that_no_browser_sends() -> None:
    async with trio.open_nursery() as nursery:
        port = await started(nursery)
        head = f"POST /create-topic HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n".encode()
        for request in (
            b"\x16\x03\x01\x02\x00nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
            get(port, "/", "X: " + "x" * 100_000),
            get(port, "/?page=" + "9" * 5000),
            get(port, "/topic?name=%ff%fe"),
            get(port, "/", "Cookie: raftmq=%s; raftmq=\xff" % ("x" * 5000)),
            head + b"Content-Length: 300000\r\n\r\n" + b"a" * 300_000,
            head + b"Content-Length: 3\r\n\r\n\xff\xfe=",
        ):
            answer = await exchange(port, request)
            assert b"Traceback" not in answer
        assert (await exchange(port, get(port, "/healthz"))).endswith(b"ok\n")
        nursery.cancel_scope.cancel()


async def test_failed_page_names_the_log_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(visit: Visit) -> Page:
        raise ZeroDivisionError(visit.session.key)

    monkeypatch.setitem(cast("Any", PAGES), "/changes", broken)
    async with trio.open_nursery() as nursery:
        port = await started(nursery)
        answer = await exchange(port, get(port, "/changes"))
        assert answer.startswith(b"HTTP/1.1 500")
        assert b"x-frame-options" in answer
        assert answer.endswith(b"This page has a fault, which is in the log of the console.\n")
        assert (await exchange(port, get(port, "/healthz"))).endswith(b"ok\n")
        nursery.cancel_scope.cancel()


async def test_missing_console_certificate_is_reported(tmp_path: Path) -> None:
    settings = ConsoleSettings.load(listen_port=0, tls_certificate=tmp_path / "chain.pem", tls_key=tmp_path / "key.pem")
    with pytest.raises(FileNotFoundError) as caught:
        await serve(settings, remoting=REMOTING)
    assert str(tmp_path / "chain.pem") in str(caught.value.filename)


async def test_browsers_use_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with trio.open_nursery() as nursery:
        port = await started(nursery, tls_certificate=tmp_path / "chain.pem", tls_key=tmp_path / "key.pem")
        stream = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=context, https_compatible=True)
        answer = b""
        async with stream:
            await stream.send_all(get(port))
            with trio.fail_after(20):
                async for part in stream:
                    answer += part
        head = answer.partition(b"\r\n\r\n")[0]
        assert b"__Host-raftmq-%d=" % port in head
        assert b"; Secure" in head
        assert b"strict-transport-security: max-age=31536000" in head
        nursery.cancel_scope.cancel()
