"""Servers and clients of a run with accounts and TLS."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
import trio

from checkers.events import TLS
from jepsen.clients import java_missing
from jepsen.deployments.security import ACCESS_KEY, ACCOUNTS, BOTH, SECURITY, secure_clients
from jepsen.run import Plan
from jepsen.wire import Wire
from mq.accounts import parse_accounts
from mq.client.net.credentials import Credentials, tls_from_environment
from mq.protocol.codes import RequestCode

HOSTS = ("127.0.0.1", "10.78.0.1")


@pytest.mark.parametrize("name", ["", *SECURITY])
def test_run_with_security_restores_the_environment_variables(tmp_path: Path, name: str) -> None:
    before = dict(os.environ)
    with secure_clients(name, tmp_path, HOSTS) as settings:
        assert ("acl_file" in settings) == (ACCOUNTS in name)
        assert ("tls_certificate" in settings) == (TLS in name)
        assert (Credentials.from_environment() is not None) == (ACCOUNTS in name)
        assert isinstance(tls_from_environment(), ssl.SSLContext) == (TLS in name)
    assert dict(os.environ) == before


def test_account_is_valid_and_its_file_is_private(tmp_path: Path) -> None:
    with secure_clients(BOTH, tmp_path, HOSTS) as settings:
        path = Path(settings["acl_file"])
        assert parse_accounts(path.read_text()) is not None
        assert path.stat().st_mode & 0o077 == 0


def test_raw_requests_are_signed_with_an_account(tmp_path: Path) -> None:
    with secure_clients(ACCOUNTS, tmp_path, HOSTS):
        signed = Wire(_NoStream(), Credentials.from_environment())
    frame = signed.frame(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}, lambda *_: None)
    assert ACCESS_KEY.encode() in frame
    assert b"Signature" in frame
    plain = Wire(_NoStream()).frame(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}, lambda *_: None)
    assert b"Signature" not in plain


class _NoStream(trio.abc.Stream):
    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def test_command_of_a_secured_run_names_its_security() -> None:
    plan = Plan("log", ("kill",), 5, 1, "local", security=BOTH)
    assert "--security accounts+tls" in plan.command


def test_secured_run_has_no_java_client() -> None:
    assert java_missing([], BOTH) is not None
