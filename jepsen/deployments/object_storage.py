"""An S3 server in a separate process. Its objects are files of a directory, which faults damage from outside.

It has the operations that `raftlog.segment.s3_storage` uses: conditional writes, uploads in parts, checksums (CRC-32),
ranges, listing, deletion. Every bucket exists, and clients need no account. Contents are sent by sendfile, so that it
costs little beside the tested servers.

``python -m jepsen.deployments.object_storage DIRECTORY HOST PORT`` serves until it is killed.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import trio

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

from mq.local_cluster import HOST, Processes, open_processes
from mq.local_cluster.port_reservation import OWN_PORTS

BUCKET: Final = "archives"
NAME: Final = "object-storage"
ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - namespaces of the test reach it by an address of theirs
PIECE_BYTES: Final = 1 << 20
NAMES_MAX: Final = 1000
"""The most names in one answer to a listing, as in S3."""
ROOT: Final = Path(__file__).parent.parent.parent

ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "AKIAHARNESSHARNESS",
    "AWS_SECRET_ACCESS_KEY": "of-a-server-that-asks-nobody",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""The environment of the store's clients: boto3 then looks for nothing in files of the user, or on the network."""

_PART = re.compile(rb"<PartNumber>(\d+)</PartNumber>")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_CHECKSUM: Final = "x-amz-checksum-crc32"
_DELAY: Final = "delay"
_ANSWERED: Final = "answered"


class Server(ThreadingHTTPServer):
    """Serves objects from ``directory``/objects/BUCKET, and keeps the parts of uploads in ``directory``/uploads."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, directory: Path, address: tuple[str, int]) -> None:
        self.objects = directory / "objects"
        self.uploads = directory / "uploads"
        self.replace_lock = threading.Lock()
        self._delay = directory / _DELAY
        for path in (self.objects, self.uploads):
            path.mkdir(parents=True, exist_ok=True)
        super().__init__(address, _StorageHandler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that have closed their connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def wait(self) -> None:
        """Delay the response by the seconds in the file `delay`."""
        with suppress(OSError, ValueError):
            time.sleep(float(self._delay.read_text()))

    def print_line(self, line: str) -> None:
        """Print a line about a response."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


class _StorageHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server  # type: ignore[mutable-override]

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(6, 1, 1)  # TCP_NODELAY

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as the base class names it
        pass

    def _put(self) -> None:
        query, path = self._begin()
        if "partNumber" in query:
            checksum = self._store_body(self.server.uploads / query["uploadId"][0] / query["partNumber"][0])
            if checksum is not None:
                self._answer(HTTPStatus.OK, headers={"ETag": '"part"', **checksum})
            return
        new = self.server.uploads / f"new-{uuid.uuid4().hex}"
        if (checksum := self._store_body(new)) is None:
            return
        with self.server.replace_lock:
            tag = _tag(path)
            forbids = self.headers.get("If-None-Match") == "*" and tag is not None
            if forbids or (condition := self.headers.get("If-Match")) not in (None, tag):
                new.unlink()
                is_missing = not forbids and tag is None
                self._refuse(HTTPStatus.NOT_FOUND if is_missing else HTTPStatus.PRECONDITION_FAILED)
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            new.rename(path)
            assert condition is None or condition == tag, f"{path} was replaced, although it is {tag}, not {condition}"
            self._answer(HTTPStatus.OK, headers={"ETag": _tag(path) or "", **checksum})

    def _post(self) -> None:
        query, path = self._begin()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "uploads" in query:
            upload = uuid.uuid4().hex
            (self.server.uploads / upload).mkdir()
            self._answer(HTTPStatus.OK, _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>"))
            return
        parts = self.server.uploads / query["uploadId"][0]
        new = parts / "whole"
        with new.open("wb") as whole:
            for number in map(int, _PART.findall(body)):
                with (parts / str(number)).open("rb") as part:
                    shutil.copyfileobj(part, whole, PIECE_BYTES)
        path.parent.mkdir(parents=True, exist_ok=True)
        new.rename(path)
        shutil.rmtree(parts)
        self._answer(HTTPStatus.OK, _xml("CompleteMultipartUploadResult", f"<ETag>{escape(_tag(path) or '')}</ETag>"))

    def _delete(self) -> None:
        query, path = self._begin()
        if "uploadId" in query:
            shutil.rmtree(self.server.uploads / query["uploadId"][0], ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        self._answer(HTTPStatus.NO_CONTENT)

    def _head(self) -> None:
        _, path = self._begin()
        try:
            headers = {"ETag": _tag(path) or "", "Content-Length": str(path.stat().st_size)}
        except OSError:
            self._answer(HTTPStatus.NOT_FOUND)
            return
        self._answer(HTTPStatus.OK, headers=headers)

    def _get(self) -> None:
        query, path = self._begin()
        if "list-type" in query:
            self._list(query, path)
            return
        try:
            file = path.open("rb")
        except OSError:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            begin, end, status = 0, size, HTTPStatus.OK
            headers = {"ETag": _tag(path) or ""}
            if (match := _RANGE.fullmatch(self.headers.get("Range", ""))) is not None:
                begin, end = int(match[1]), min(int(match[2] or size), size - 1) + 1
                if begin >= size:
                    self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                    return
                status = HTTPStatus.PARTIAL_CONTENT
                headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
            self._answer(status, headers=headers | {"Content-Length": str(end - begin)})
            self.wfile.flush()
            while begin < end:
                nbytes = os.sendfile(self.connection.fileno(), file.fileno(), begin, end - begin)
                if not nbytes:  # it was cut short meanwhile: the client notices that bytes are missing
                    self.close_connection = True
                    return
                begin += nbytes

    def _list(self, query: dict[str, list[str]], bucket: Path) -> None:
        prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        after = query.get("continuation-token", [""])[0]
        names = dict.fromkeys(
            f"{prefix}{rest.partition('/')[0]}/" if delimiter and "/" in (rest := key[len(prefix) :]) else key
            for key in sorted(_keys(bucket))
            if key.startswith(prefix)
        )
        later_names = [name for name in names if name > after]
        rows = [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            if name.endswith("/")
            else f"<Contents><Key>{escape(name)}</Key></Contents>"
            for name in later_names[:NAMES_MAX]
        ]
        is_cut = len(later_names) > NAMES_MAX
        more = f"<NextContinuationToken>{escape(later_names[NAMES_MAX - 1])}</NextContinuationToken>" if is_cut else ""
        cut_flag = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        self._answer(HTTPStatus.OK, _xml("ListBucketResult", cut_flag + more + "".join(rows)))

    def _begin(self) -> tuple[dict[str, list[str]], Path]:
        self.server.wait()
        url = urlsplit(self.path)
        parts = [part for part in unquote(url.path).split("/") if part]
        assert ".." not in parts, self.path
        return parse_qs(url.query, keep_blank_values=True), self.server.objects.joinpath(*parts)

    def _store_body(self, path: Path) -> dict[str, str] | None:
        """Store the content of the request; returns its checksum as a header. None if the client has named another
        checksum: then the request was refused.
        """
        unread_bytes, checksum = int(self.headers["Content-Length"]), 0
        with path.open("wb") as file:
            while unread_bytes:
                data = self.rfile.read(min(unread_bytes, PIECE_BYTES))
                if not data:
                    raise ConnectionResetError("the client has gone away")
                checksum = crc32(data, checksum)
                file.write(data)
                unread_bytes -= len(data)
        text = base64.b64encode(checksum.to_bytes(4, "big")).decode()
        if self.headers.get(_CHECKSUM, text) != text:
            path.unlink()
            self._refuse(HTTPStatus.BAD_REQUEST)
            return None
        return {_CHECKSUM: text}

    def _refuse(self, status: HTTPStatus) -> None:
        codes = {
            HTTPStatus.BAD_REQUEST: "BadDigest",
            HTTPStatus.NOT_FOUND: "NoSuchKey",
            HTTPStatus.PRECONDITION_FAILED: "PreconditionFailed",
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: "InvalidRange",
        }
        self._answer(status, _xml("Error", f"<Code>{codes[status]}</Code><Message>{status.phrase}</Message>"))

    def _answer(self, status: HTTPStatus, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.server.print_line(f"{_ANSWERED} {self.command} {status.value} {self.path}")

    def serve(self) -> None:
        """Answer a request, whatever its method."""
        methods = {"GET": self._get, "HEAD": self._head, "PUT": self._put, "POST": self._post, "DELETE": self._delete}
        methods[self.command]()


for _method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
    setattr(_StorageHandler, f"do_{_method}", _StorageHandler.serve)


def _tag(path: Path) -> str | None:
    """The tag of an object, which each replacement changes; None if the object does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}"'


def _keys(bucket: Path) -> Iterator[str]:
    for directory, _, names in os.walk(bucket):
        yield from (str((Path(directory) / name).relative_to(bucket)) for name in names)


def _xml(name: str, content: str) -> bytes:
    return f'<?xml version="1.0"?><{name}>{content}</{name}>'.encode()


class ObjectStorage:
    """The server in a child process, and its directory. ``url`` is its address, for `archive_endpoint_url`."""

    def __init__(self, directory: Path, processes: Processes, host: str = HOST) -> None:
        self.directory = directory
        self._processes = processes
        self._listens = HOST if host == HOST else ANY_HOST
        self._port = OWN_PORTS.reserve(1)
        self.url = f"http://{host}:{self._port}"

    def files(self, prefix: str) -> Path:
        """Return the directory that has the objects of `BUCKET` below a prefix."""
        return self.directory / "objects" / BUCKET / prefix

    async def start(self) -> None:
        """Start the store, and wait until it answers. Raises ServersFailed."""
        command = [sys.executable, "-m", "jepsen.deployments.object_storage", str(self.directory)]
        command += [self._listens, str(self._port)]
        self._processes.start(NAME, command, directory=ROOT)
        await self._processes.wait_listening(NAME, self._port)

    @property
    def is_running(self) -> bool:
        """Whether the server's process is running."""
        return self._processes.is_running(NAME)

    async def kill(self) -> None:
        """Kill the server: its connections break, and it refuses new ones. Its objects stay."""
        self._processes.kill(NAME)
        await self._processes.wait_ended(NAME)

    def delay(self, seconds: float) -> None:
        """Make the server wait for ``seconds`` before it handles a request, from now on."""
        new = self.directory / f"{_DELAY}.new"
        new.write_text(str(seconds))
        new.rename(self.directory / _DELAY)

    def answered_requests(self) -> list[str]:
        """Return the method, path and status of each request that the server has answered, in order."""
        lines = self._processes.log_path(NAME).read_text().splitlines()
        return [line.removeprefix(f"{_ANSWERED} ") for line in lines if line.startswith(_ANSWERED)]


@asynccontextmanager
async def open_object_storage(directory: Path, host: str = HOST) -> AsyncIterator[ObjectStorage]:
    """Run the server until the block ends. ``host`` is the address by which its clients reach this machine."""
    await trio.to_thread.run_sync(partial(directory.mkdir, parents=True, exist_ok=True))
    with open_processes(directory) as processes:
        storage = ObjectStorage(directory, processes, host)
        await storage.start()
        yield storage


if __name__ == "__main__":
    Server(Path(sys.argv[1]), (sys.argv[2], int(sys.argv[3]))).serve_forever()
