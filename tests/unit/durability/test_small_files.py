"""Small files that somebody was told are stored: a power cut at any moment leaves the old content or the new one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from chaos.watched_files import UnsyncedRest, WatchedFiles, watch_files
from mq.client.consume.local_offsets import LocalOffsets
from mq.client.message import MessageQueue
from mq.local_cluster.groups import set_segment_bytes
from mq.namesrv.kv_config import KvConfig
from mq.namesrv.kv_file import FILE_NAME, KvFile, KvFileDamaged
from raftlog.net.secret_file import create_secret, new_secret, read_secrets, write_secrets

QUEUE = MessageQueue("T", "broker-a", 0)

Read = Callable[[Path], object]


class Cuts:
    """Cuts the power at every step of an operation, and reads what is left."""

    def __init__(self, files: WatchedFiles, scratch: Path, read: Read, allowed: Iterable[object]) -> None:
        self.steps = 0
        self._files = files
        self._scratch = scratch
        self._read = read
        self._allowed = list(allowed)
        files.at_each_step = self._cut

    def _cut(self, what: str) -> None:
        self.steps += 1
        for left in UnsyncedRest:
            try:
                found = self.after(left)
            except OSError as error:  # not one of the operation, which may handle it
                raise AssertionError(f"cut before {what}, {left.value} left: {error}") from error
            assert found in self._allowed, f"cut before {what}, {left.value} left: {found}"

    def after(self, left: UnsyncedRest) -> object:
        target = Path(tempfile.mkdtemp(dir=self._scratch)) / "left"
        self._files.leave(target, left)
        return self._read(target)

    def assert_stored(self, wanted: object) -> None:
        """The operation has reported success: nothing of it may be lost now."""
        self._files.at_each_step = None
        assert self._files.undurable() == []
        for left in UnsyncedRest:
            assert self.after(left) == wanted


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def kv_values(directory: Path) -> object:
    config = KvConfig()
    try:
        KvFile(config, directory / "a" / "b").load()
    except KvFileDamaged as error:
        return str(error)
    return dict(config.of_namespace("N") or {})


def save(config: KvConfig, root: Path, value: str) -> KvFile:
    file = KvFile(config, root / "a" / "b")
    config.put("N", "k", value)
    trio.run(file.save)
    return file


def test_kv_configuration_survives_a_power_cut_at_any_step(root: Path, tmp_path: Path) -> None:
    config = KvConfig()
    with watch_files(root) as files:
        cuts = Cuts(files, tmp_path, kv_values, [{}, {"k": "1"}])
        save(config, root, "1")
        cuts.assert_stored({"k": "1"})
        for before, after in (("1", "2"), ("2", "3")):
            cuts = Cuts(files, tmp_path, kv_values, [{"k": before}, {"k": after}])
            save(config, root, after)
            assert cuts.steps >= 4
            cuts.assert_stored({"k": after})


def test_damaged_kv_file_never_replaces_its_good_predecessor(root: Path, tmp_path: Path) -> None:
    config = KvConfig()
    save(config, root, "1")
    save(config, root, "2")
    (root / "a" / "b" / FILE_NAME).write_bytes(b"damaged")
    config = KvConfig()
    file = KvFile(config, root / "a" / "b")
    assert file.load() is not None
    with watch_files(root) as files:
        cuts = Cuts(files, tmp_path, kv_values, [{"k": "1"}, {"k": "3"}])
        config.put("N", "k", "3")
        trio.run(file.save)
        cuts.assert_stored({"k": "3"})


def offset(directory: Path) -> object:
    return LocalOffsets(cast("Any", None), str(directory / "a" / "offsets.json"), "last")._offsets.get(QUEUE)


def test_broadcast_offsets_survive_a_power_cut_at_any_step(root: Path, tmp_path: Path) -> None:
    """If the file of a consumer that begins with the last message is lost, it skips what came while it was away."""
    offsets = LocalOffsets(cast("Any", None), str(root / "a" / "offsets.json"), "last")
    with watch_files(root) as files:
        for before, after in ((None, 5), (5, 6)):
            cuts = Cuts(files, tmp_path, offset, [before, after])
            offsets.commit_soon({QUEUE: after})
            cuts.assert_stored(after)


def secrets(directory: Path) -> object:
    path = directory / "etc" / "raftmq" / "group.secret"
    return read_secrets(str(path)) if path.exists() else None


def test_secret_of_a_group_survives_a_power_cut_at_any_step(root: Path, tmp_path: Path) -> None:
    path = root / "etc" / "raftmq" / "group.secret"

    def mode_kept(directory: Path) -> object:
        for each in directory.rglob("group.secret"):
            each.chmod(0o600)
        return secrets(directory)

    with watch_files(root) as files:
        assert create_secret(str(path))
        first = read_secrets(str(path))
        assert files.undurable() == []
        second = (new_secret(), *first)
        cuts = Cuts(files, tmp_path, mode_kept, [first, second])
        write_secrets(str(path), second)
        cuts.assert_stored(second)


def test_file_size_of_a_dev_directory_survives_power_cuts(root: Path, tmp_path: Path) -> None:
    """An empty file would be no size, and brokers with another size do not open their logs."""

    def size(directory: Path) -> object:
        settings: dict[str, str] = {}
        if (directory / "dev" / "segment_bytes").exists():
            settings["segment_bytes"] = (directory / "dev" / "segment_bytes").read_text()
        return settings.get("segment_bytes")

    with watch_files(root) as files:
        cuts = Cuts(files, tmp_path, size, [None, "4096\n"])
        set_segment_bytes(root / "dev", {"segment_bytes": "4096"})
        cuts.assert_stored("4096\n")
