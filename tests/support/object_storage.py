"""S3 object storage on a real socket: moto's server, with faults in front of it."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final, NamedTuple

import boto3
from botocore.loaders import JSONFileLoader
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "backups"
LISTS_MAX = 10
"""Attempts of a listing."""
ACCESS_KEY = "AKIATESTTESTTEST"
SECRET_KEY = "a-secret-that-nobody-may-see"

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


_load = cache(JSONFileLoader().load_file)
# Brokers and commands make sessions of their own, and each session would parse megabytes that describe the API.
JSONFileLoader.load_file = lambda _, path: _load(path)


class Refusal(NamedTuple):
    """An answer with an error."""

    status: int
    code: str


CUT: Final = -1

Fault = Callable[[str, str], Refusal | int | None]
"""From method and path with query to an error or an HTTP status to respond with, or None to forward; 0 for no response
any more, `CUT` for none after half of the content of this request.
"""


class ObjectStorage:
    """One bucket, `BUCKET`.

    Attributes:
        requests: method and path with query of each request.
        expired: access keys whose requests are refused, since they have expired.
        fault: decides about each request; see `Fault`. After one 0 nothing is answered any more.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.expired: set[str] = set()
        self.fault: Fault = lambda method, path: None
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Silent)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._gone = False
        session = boto3.session.Session(ACCESS_KEY, SECRET_KEY)
        self._client = session.client("s3", "us-east-1", endpoint_url=self.url)

    def names(self) -> list[str]:
        """The names of all objects, in order."""
        return [each["Key"] for each in self._client.list_objects_v2(Bucket=BUCKET).get("Contents", ())]

    def content(self, key: str) -> bytes:
        """The content of an object."""
        content: bytes = self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def put(self, key: str, content: bytes) -> None:
        """Store an object, bypassing the program under test."""
        self._client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def remove(self, key: str) -> None:
        """Remove an object, bypassing the program under test."""
        self._client.delete_object(Bucket=BUCKET, Key=key)

    def come_back(self) -> None:
        """Respond again."""
        self._gone = False
        self.fault = lambda method, path: None

    def forget(self) -> None:
        """Reset to the initial state."""
        self.come_back()
        self.requests.clear()
        self.expired.clear()
        for key in self.names():
            self.remove(key)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        path = f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}".rstrip("?")
        self.requests.append((method, path))
        fault = 0 if self._gone else self.fault(method, path)
        if any(f"Credential={key}/" in environ.get("HTTP_AUTHORIZATION", "") for key in self.expired):
            fault = Refusal(400, "ExpiredToken")
        if fault is None:
            return self._served(environ, start_response)
        nbytes = int(environ.get("CONTENT_LENGTH") or 0)
        if isinstance(fault, int) and fault <= 0:
            self._gone = fault == 0
            environ["wsgi.input"].read(nbytes // 2 if fault == CUT else 0)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return ()
        environ["wsgi.input"].read(nbytes)
        status, code = (fault, {403: "AccessDenied", 503: "SlowDown"}[fault]) if isinstance(fault, int) else fault
        start_response(f"{status} {code}", [("Content-Type", "application/xml")])
        return (f"<Error><Code>{code}</Code><Message>because of the test</Message></Error>".encode(),)

    def _served(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Let moto respond. Its listing raises if another request changes the bucket meanwhile; a real store lists."""
        answer: Iterable[bytes]
        for _ in range(LISTS_MAX if environ["REQUEST_METHOD"] == "GET" else 0):
            with suppress(KeyError, RuntimeError):
                answer = self._app(environ, start_response)
                return answer
        answer = self._app(environ, start_response)
        return answer

    def start(self) -> None:
        """Start responding."""
        self._thread.start()
        self._client.create_bucket(Bucket=BUCKET)

    def stop(self) -> None:
        """Stop, and clear everything: moto keeps it for the process."""
        self.come_back()
        self._client.close()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")).close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def object_storage() -> Iterator[ObjectStorage]:
    """Runs until the end of the block, and clears everything."""
    storage = ObjectStorage()
    storage.start()
    try:
        yield storage
    finally:
        storage.stop()


class _Silent(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - as the base class names it
        pass
