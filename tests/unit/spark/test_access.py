"""The client of Spark signs its requests and uses TLS, as the environment says."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.credentials import CredentialsInvalid
from mq.protocol.access.signing import ACCESS_KEY, Signer
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import JSON, encode_frame
from spark import access as access_module
from spark.access import CREDENTIALS, NOBODY, TLS, TLS_CA, access, for_executors, use
from spark.client import Connection, ServerError, Unreachable
from tests.support.certificates import Authority

VARIABLES = ("RAFTMQ_ACCESS_KEY", "RAFTMQ_SECRET_KEY", TLS, *access_module.FILES)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what a test sets is undone
        monkeypatch.delenv(name)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text('access_key = "reader01"\nsecret_key = "secret-of-reader"\n')
    path.chmod(0o600)
    return path


class Answering:
    """Answers each request with the fields that it had; ``code`` is that of the answer."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.code: int = ResponseCode.SUCCESS
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            try:
                with plain, self._tls.wrap_socket(plain, server_side=True) if self._tls else plain as client:
                    self._answer(client)
            except (OSError, ValueError):  # the other side has ended it, or speaks TLS
                continue

    def _answer(self, client: Any) -> None:
        stream = client.makefile("rb")
        while prefix := stream.read(4):
            frame = stream.read(int.from_bytes(prefix, "big"))
            length = int.from_bytes(frame[1:4], "big")
            header = json.loads(frame[4 : 4 + length])
            told = {"code": self.code, "flag": 1, "opaque": header["opaque"], "extFields": header["extFields"]}
            # Two answers at once: the second one is in memory when the first one is read.
            client.sendall(encode_frame(JSON, json.dumps(told | {"remark": "no"}).encode(), frame[4 + length :]) * 2)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Answering]:
    opened = Answering()
    yield opened
    opened.close()


def test_requests_without_configured_credentials_are_unsigned(server: Answering) -> None:
    assert access() is NOBODY
    connection = Connection(server.address, 5)
    assert connection.ask(RequestCode.GET_MIN_OFFSET, {"topic": "T"}).ext == {"topic": "T"}
    connection.close()


def test_each_request_is_signed_with_the_keys_of_the_file(server: Answering, keys: Path) -> None:
    os.environ[CREDENTIALS] = str(keys)
    connection = Connection(server.address, 5)
    fields = connection.ask(RequestCode.GET_MIN_OFFSET, {"topic": "T"}).ext
    connection.close()
    assert (fields["topic"], fields[ACCESS_KEY]) == ("T", "reader01")
    assert Signer("secret-of-reader").is_signed(fields, b"")
    keys.write_text('access_key = "reader02"\nsecret_key = "secret-of-reader"\n')
    os.utime(keys, ns=(1, 1))
    assert access().who == "as reader02"


def test_refusal_names_the_account_and_never_the_secret(server: Answering, keys: Path) -> None:
    server.code = ResponseCode.NO_PERMISSION
    for path, who in ((None, "without an account"), (keys, "as reader01")):
        if path is not None:
            os.environ[CREDENTIALS] = str(path)
        connection = Connection(server.address, 5)
        with pytest.raises(ServerError) as caught:
            connection.ask(RequestCode.GET_MIN_OFFSET, {})
        connection.close()
        assert str(caught.value) == f"{server.address} answered no (code 16, asked {who})"
    assert "secret-of" not in repr(access())


@pytest.mark.parametrize("case", ["missing", "open to others", "half", "no such mode", "no authority"])
def test_unusable_credentials_are_refused_before_connecting(case: str, keys: Path, tmp_path: Path) -> None:
    match case:
        case "missing":
            os.environ[CREDENTIALS] = str(tmp_path / "none.toml")
        case "open to others":
            keys.chmod(0o644)
            os.environ[CREDENTIALS] = str(keys)
        case "half":
            os.environ["RAFTMQ_ACCESS_KEY"] = "reader01"
        case "no such mode":
            os.environ[TLS] = "perhaps"
        case _:
            os.environ |= {TLS: "on", TLS_CA: str(tmp_path / "none.pem")}
    with pytest.raises(CredentialsInvalid):
        Connection("127.0.0.1:1", 1)


def test_account_of_a_pipeline_overrides_keys_of_the_environment(keys: Path) -> None:
    os.environ |= {"RAFTMQ_ACCESS_KEY": "somebody", "RAFTMQ_SECRET_KEY": "else-secret"}
    assert access().who == "as somebody"
    assert for_executors() == {}  # Spark shows the environment of executors
    use({CREDENTIALS: str(keys)})
    assert access().who == "as reader01"
    assert for_executors() == {CREDENTIALS: str(keys)}


def test_tls_connection_checks_the_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.sign("server", "127.0.0.1"))
    server = Answering(context)
    try:
        os.environ[TLS] = "on"
        with pytest.raises(Unreachable, match=r"TLS fails, .*certificate verify failed"):
            Connection(server.address, 5)
        os.environ[TLS_CA] = str(authority.file)
        connection = Connection(server.address, 5)
        large = b"x" * 5000
        assert connection.receive(connection.send(RequestCode.GET_MIN_OFFSET, {"topic": "T"}, large)).body == large
        assert connection.has_input  # the second answer
        connection.close()
    finally:
        server.close()


def test_tls_to_a_plaintext_server_fails_with_a_clear_error(server: Answering, tmp_path: Path) -> None:
    os.environ |= {TLS: "on", TLS_CA: str(Authority(tmp_path).file)}
    with pytest.raises(Unreachable, match=r"TLS fails, .*does it use TLS"):
        Connection(server.address, 1)
