"""The object storage of the harness and the benchmarks, as brokers use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from jepsen.deployments.object_storage import BUCKET, ENVIRONMENT, Server
from jepsen.nemeses.stores import FLIP_EVERY_BYTES, rotten
from raftlog.segment.backup_store import ManifestChanged, NotStored
from raftlog.segment.ranges_ahead import RangesAhead
from raftlog.segment.s3_storage import S3Store, open_s3
from raftlog.segment.s3_upload import PART_BYTES

URL = f"s3://{BUCKET}/broker-a"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """A server in a thread; its address."""
    server = Server(directory, ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[S3Store]:
    with serving(tmp_path) as url:
        opened = open_s3(URL, url)
        yield opened
        opened.close()


def test_objects_are_read_whole_and_in_ranges(store: S3Store) -> None:
    content = Random(1).randbytes(2 * PART_BYTES + 17)
    assert store.write("log/large", [content[:1000], content[1000:]]), "it compares checksums"
    assert not store.write("log/small", [b"abc"])
    assert store.read("log/large", len(content), 0) == content
    assert store.read_range("log/large", 20, PART_BYTES - 10) == content[PART_BYTES - 10 : PART_BYTES + 10]
    assert store.read_range("log/small", 100, 1) == b"bc"
    assert store.read_range("log/small", 100, 3) == b""
    assert list(store.names("log")) == ["large", "small"]
    assert list(store.names()) == ["log"]
    store.remove("log/small")
    with pytest.raises(NotStored):
        store.read_range("log/small", 1, 0)


def test_objects_that_are_read_as_wholes_come_in_ranges(store: S3Store) -> None:
    rng = Random(2)
    objects = {f"log/{size}": rng.randbytes(size) for size in (1, 9_999, 10_000, 10_001, 45_678)}
    for name, content in objects.items():
        store.write(name, [content])
    store.write("index/other", [b"abc"])
    wholes = [(name, len(content)) for name, content in objects.items()]
    store._ahead = RangesAhead(store.read_range, wholes, 10_000)
    for name, content in objects.items():
        at = 0
        while at < len(content):
            data = store.read(name, 7_000, at)
            assert data == content[at : at + 7_000]
            at += len(data) - rng.choice((0, 0, len(data) // 3))  # what did not fit is read once more
            assert store.read("index/other", 10, 0) == b"abc"
    assert store.read("log/45678", 100, 5) == objects["log/45678"][5:105], "also what was read already"
    store.will_read([("log/9999", 9_990), ("log/10000", 10_010)])
    assert len(store.read("log/9999", 10_000, 0)) > 9_990, "it is longer than it should be"
    assert len(store.read("log/10000", 10_010, 0)) == 10_000, "it is shorter"


def test_listing_continues_after_a_thousand_names(store: S3Store, tmp_path: Path) -> None:
    folder = tmp_path / "objects" / BUCKET / "broker-a" / "log"
    folder.mkdir(parents=True)
    for number in range(2001):
        (folder / f"{number:05d}").touch()
    assert list(store.names("log")) == [f"{number:05d}" for number in range(2001)]


def test_client_replaces_only_a_manifest_read_before(store: S3Store, tmp_path: Path) -> None:
    assert store.load_manifest() is None
    store.replace_manifest(b"first")
    store.check_conditions()
    with serving(tmp_path) as url:
        other = open_s3(URL, url)
        with pytest.raises(ManifestChanged):
            other.replace_manifest(b"not read before")
        assert other.load_manifest() == b"first"
        other.replace_manifest(b"second")
        with pytest.raises(ManifestChanged):
            store.replace_manifest(b"third")
        other.close()
    assert store.load_manifest() == b"second"


def test_rotten_object_differs_everywhere() -> None:
    content = bytes(3 * FLIP_EVERY_BYTES + 5)
    damaged = rotten(Random(1), content)
    assert len(damaged) == len(content)
    for begin in range(0, len(content), FLIP_EVERY_BYTES):
        assert sum(map(int.bit_count, damaged[begin : begin + FLIP_EVERY_BYTES])) == 1
