"""`raftmq backup` and `raftmq restore` with a bucket, over HTTP."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result
from urllib3 import HTTPResponse
from urllib3.exceptions import SSLError

from mq.cli.app import app
from mq.cli.errors import EXIT_FAILED, EXIT_REFUSED, CommandFailed
from raftlog.segment import s3_storage
from raftlog.segment.backup import BackupTarget
from raftlog.segment.backup_store import BackupRefused, StoreFailed
from raftlog.segment.disk import ReadOnlyDisk
from raftlog.segment.running_log import RunningLog
from raftlog.segment.s3_storage import open_s3
from tests.support.object_storage import BUCKET, SECRET_KEY, ObjectStorage
from tests.support.replica_directories import grow

TARGET = f"s3://{BUCKET}/a/broker"
PEERS = "n0@127.0.0.1:1,n1@127.0.0.1:2,n2@127.0.0.1:3"


def run(storage: ObjectStorage, *arguments: str | Path) -> Result:
    """A command; what it prints never has the secret in it."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--endpoint-url", storage.url])
    assert SECRET_KEY not in f"{result.output}{result.stderr}{result.exception}"
    return result


def taken(storage: ObjectStorage, data_dir: Path, *more: str, target: str = TARGET) -> Result:
    return run(storage, "backup", target, "--data-dir", data_dir, "--namesrv", "127.0.0.1:1", *more)


def verified(storage: ObjectStorage) -> dict[str, Any]:
    result = run(storage, "backup", "verify", TARGET, "--json")
    assert result.exit_code == 0, result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refusal(result: Result) -> CommandFailed:
    assert isinstance(result.exception, CommandFailed), result.output
    return result.exception


def log_objects(storage: ObjectStorage) -> list[str]:
    return [key for key in storage.names() if "/log/" in key]


def test_backup_is_taken_verified_and_restored(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 100)
    result = taken(storage, tmp_path / "n1")
    assert result.exit_code == 0, result.exception
    assert f"{TARGET}: started a new backup: 100 new entries" in result.output
    assert verified(storage)["last_index"] == 100
    targets = [f"n{number}={tmp_path / 'new' / f'n{number}'}" for number in range(2)]
    done = run(storage, "restore", TARGET, *targets, "--peers", PEERS, "--json")
    assert json.loads(done.stdout)["restored_index"] == 100
    segments = sorted((tmp_path / "n1" / "commitlog").glob("0*"))[:-1]
    for path in segments:
        if path.suffix != ".index":
            assert (tmp_path / "new" / "n1" / "commitlog" / path.name).read_bytes() == path.read_bytes()


def test_second_run_stores_only_the_newest_file_again(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 100)
    taken(storage, tmp_path / "n1")
    first = log_objects(storage)
    grow(tmp_path / "n1", 105)
    found = json.loads(taken(storage, tmp_path / "n1", "--json").stdout)
    assert (found["new_entries"], found["last_index"]) == (5, 105)
    second = log_objects(storage)
    assert len(set(second) - set(first)) == 1
    assert set(first) <= set(second)  # the superseded one stays for whoever reads by the manifest before
    assert verified(storage)["last_index"] == 105
    taken(storage, tmp_path / "n1")
    assert log_objects(storage) == sorted({*second} - {first[-1]})
    assert verified(storage)["last_index"] == 105


def test_large_files_are_uploaded_in_parts_and_read_in_ranges(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_storage, "READ_BYTES", 3 * 1024 * 1024 + 1)
    grow(tmp_path / "n1", 150, segment_bytes=24 * 1024 * 1024, body_repeats=20_000)
    assert taken(storage, tmp_path / "n1", "--rate", "0").exit_code == 0
    parts = [path for method, path in storage.requests if method == "PUT" and "partNumber=" in path]
    assert len(parts) == 4, "the first one is sent with a wrong checksum before"
    assert len(set(parts)) == 3
    assert verified(storage)["last_index"] == 150


@pytest.mark.slow
def test_endpoint_failing_midway_leaves_the_backup_unchanged(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 100)
    taken(storage, tmp_path / "n1")
    before = storage.content("a/broker/manifest.json")
    grow(tmp_path / "n1", 300)
    for nth in (1, 2, 4):
        puts: list[str] = []

        def gone(method: str, path: str, puts: list[str] = puts, nth: int = nth) -> int | None:
            puts += [path] if method == "PUT" else []
            return 0 if len(puts) == nth else None

        storage.fault = gone
        failed = refusal(taken(storage, tmp_path / "n1"))
        assert failed.exit_code == EXIT_FAILED
        assert f"has not changed the backup in {TARGET}, which cannot be read now: entries 1 to 100" in str(failed)
        storage.come_back()
        assert storage.content("a/broker/manifest.json") == before
        assert verified(storage)["last_index"] == 100
    assert taken(storage, tmp_path / "n1").exit_code == 0
    assert verified(storage)["last_index"] == 300


@pytest.mark.slow
def test_run_killed_before_its_manifest_changes_nothing(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 100)
    taken(storage, tmp_path / "n1")
    grow(tmp_path / "n1", 200)
    storage.fault = lambda method, path: 503 if method == "PUT" and path.endswith("manifest.json") else None
    assert "manifest.json: writing it failed: SlowDown" in str(refusal(taken(storage, tmp_path / "n1")))
    storage.come_back()
    assert verified(storage)["last_index"] == 100
    assert taken(storage, tmp_path / "n1").exit_code == 0
    assert verified(storage)["last_index"] == 200


@pytest.mark.parametrize(
    ("method", "operation"), [("GET", "manifest.json: reading it"), ("PUT", "writing it"), ("DELETE", "")]
)
def test_denied_access_is_reported(storage: ObjectStorage, tmp_path: Path, method: str, operation: str) -> None:
    grow(tmp_path / "n1", 100)
    assert taken(storage, tmp_path / "n1").exit_code == 0
    grow(tmp_path / "n1", 110)
    assert taken(storage, tmp_path / "n1").exit_code == 0
    grow(tmp_path / "n1", 120)
    storage.fault = lambda asked, path: 403 if asked == method else None
    result = taken(storage, tmp_path / "n1")
    if method == "DELETE":
        assert result.exit_code == 0
        assert "the backup is complete; old objects remain" in result.stderr
        assert "AccessDenied" in result.stderr
    else:
        assert f"{operation} failed: AccessDenied" in str(refusal(result))
    storage.come_back()
    assert verified(storage)["last_index"] == (120 if method == "DELETE" else 110)


def test_missing_bucket_is_reported(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 10)
    failed = refusal(taken(storage, tmp_path / "n1", target="s3://nobody-has-this/x"))
    assert failed.exit_code == EXIT_REFUSED
    assert "NoSuchBucket" in str(failed)
    failed = refusal(run(storage, "backup", "verify", "s3://nobody-has-this/x"))
    assert failed.exit_code == EXIT_REFUSED


def test_prefix_without_a_backup_or_with_unknown_objects_is_reported(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 10)
    failed = refusal(run(storage, "backup", "verify", TARGET))
    assert (failed.exit_code, "the location contains no backup" in str(failed)) == (EXIT_REFUSED, True)
    storage.put("a/broker/thesis.tex", b"x")
    failed = refusal(taken(storage, tmp_path / "n1"))
    assert (failed.exit_code, "thesis.tex" in str(failed)) == (EXIT_REFUSED, True)
    assert storage.names() == ["a/broker/thesis.tex"]


@pytest.mark.parametrize("change", ["flip", "cut", "longer", "missing"])
def test_verify_finds_altered_and_missing_objects(storage: ObjectStorage, tmp_path: Path, change: str) -> None:
    grow(tmp_path / "n1", 60)
    taken(storage, tmp_path / "n1")
    first, *_, last = log_objects(storage)
    for key in (first, last):
        content = storage.content(key)
        match change:
            case "flip":
                storage.put(key, content[:-1] + bytes((content[-1] ^ 1,)))
            case "cut":
                storage.put(key, content[:-8])
            case "longer":
                storage.put(key, content + b"\0")
            case _:
                storage.remove(key)
        failed = refusal(run(storage, "backup", "verify", TARGET))
        assert failed.exit_code == EXIT_FAILED
        assert f"s3://{BUCKET}/{key}: damaged" in str(failed)
        if key == last:
            failed = refusal(run(storage, "restore", TARGET, f"n0={tmp_path / 'n0'}", "--peers", PEERS))
            assert failed.exit_code == EXIT_FAILED
            assert not (tmp_path / "n0").exists()
        storage.put(key, content)
    assert verified(storage)["last_index"] == 60


def test_next_run_detects_a_missing_object(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 100)
    taken(storage, tmp_path / "n1")
    storage.remove(log_objects(storage)[0])
    grow(tmp_path / "n1", 110)
    assert "damaged: the object is missing" in str(refusal(taken(storage, tmp_path / "n1")))


@pytest.mark.slow
def test_later_of_two_concurrent_runs_is_refused(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 100)
    for known in (0, 100):
        grow(tmp_path / "n1", known + 50)
        source = RunningLog(ReadOnlyDisk(), str(tmp_path / "n1" / "commitlog"))
        target = BackupTarget(open_s3(TARGET, storage.url))
        grow(tmp_path / "n1", known + 100)
        assert taken(storage, tmp_path / "n1").exit_code == 0
        with pytest.raises(BackupRefused, match="another run has changed this backup meanwhile"):
            target.extend(source, conf=b"", snapshot=None, now_ms=1)
        source.close()
        target.close()
        assert verified(storage)["last_index"] == known + 100


def test_manifest_write_without_an_answer_is_not_a_conflict(storage: ObjectStorage) -> None:
    store, other = open_s3(TARGET, storage.url), open_s3(TARGET, storage.url)
    assert store.load_manifest() is other.load_manifest() is None
    store.replace_manifest(b"one")
    other.replace_manifest(b"one")
    store.replace_manifest(b"two")
    with pytest.raises(BackupRefused, match="another run"):
        other.replace_manifest(b"three")
    assert store.load_manifest() == b"two"
    store.close()
    other.close()


def test_copied_backup_is_valid_for_verify_but_not_for_continuing(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 100)
    directory = tmp_path / "backup"
    CliRunner().invoke(app, ["backup", str(directory), "--data-dir", str(tmp_path / "n1"), "--namesrv", "127.0.0.1:1"])
    for path in directory.rglob("*"):
        if path.is_file() and path.name != "LOCK":
            storage.put(f"a/broker/{path.relative_to(directory)}", path.read_bytes())
    assert verified(storage)["last_index"] == 100
    grow(tmp_path / "n1", 110)
    assert "it is a copy of a backup in a directory" in str(refusal(taken(storage, tmp_path / "n1")))


def test_backup_copied_from_a_bucket_to_a_directory_can_be_verified(storage: ObjectStorage, tmp_path: Path) -> None:
    grow(tmp_path / "n1", 100)
    taken(storage, tmp_path / "n1")
    directory = tmp_path / "copy"
    for key in storage.names():
        path = directory / key.removeprefix("a/broker/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.content(key))
    result = CliRunner().invoke(app, ["backup", "verify", str(directory)])
    assert "entries 1 to 100" in result.output
    again = ["backup", str(directory), "--data-dir", str(tmp_path / "n1"), "--namesrv", "127.0.0.1:1"]
    assert "can only be continued there" in str(refusal(CliRunner().invoke(app, again)))


@pytest.mark.parametrize(
    ("target", "endpoint_url", "reason"),
    [
        ("s3://", None, "is not s3://BUCKET/PREFIX"),
        ("gs://bucket/x", None, "gs:// is not supported"),
        (f"s3://key:{SECRET_KEY}@bucket/x", None, "credentials do not belong into it"),
        ("s3://bucket/x", f"http://key:{SECRET_KEY}@host", "credentials do not belong into it"),
        ("s3://bucket/x", "no url", "Invalid endpoint"),
        ("/some/directory", "http://host", "--endpoint-url belongs to s3://"),
    ],
)
def test_invalid_targets_are_refused(target: str, endpoint_url: str | None, reason: str) -> None:
    more = [] if endpoint_url is None else ["--endpoint-url", endpoint_url]
    failed = refusal(CliRunner().invoke(app, ["backup", "verify", target, *more]))
    assert failed.exit_code == EXIT_REFUSED
    assert reason in str(failed)
    assert SECRET_KEY not in str(failed)


def test_backup_without_credentials_is_refused(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    failed = refusal(run(storage, "backup", "verify", TARGET))
    assert (failed.exit_code, "Unable to locate credentials" in str(failed)) == (EXIT_REFUSED, True)


def test_missing_boto3_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("boto"):
            raise ImportError(name)
        return imported(name, *arguments)

    for name in [each for each in sys.modules if each.startswith("boto3")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    failed = refusal(CliRunner().invoke(app, ["backup", "verify", TARGET]))
    assert failed.exit_code == EXIT_REFUSED
    assert "pip install 'raftmq[s3]'" in str(failed)


def test_checksums_of_whole_objects_do_not_spoil_reads_of_ranges(storage: ObjectStorage) -> None:
    """Some services name them for a range, too; what is read is verified otherwise."""
    config = open_s3(TARGET, storage.url)._client.meta.config
    assert config.response_checksum_validation == "when_required"


@pytest.mark.parametrize("times", [1, 1000])
def test_tls_failure_during_a_read_is_a_store_failure(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    store = open_s3(TARGET, storage.url)
    store.load_manifest()
    store.replace_manifest(b"one")
    store.write("log/a", [b"0123456789"])
    read = HTTPResponse.read
    left = times

    def broken(response: HTTPResponse, *given: Any, **named: Any) -> bytes:
        nonlocal left
        left -= 1
        if left >= 0:
            raise SSLError("[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] decryption failed or bad record mac")
        return read(response, *given, **named)

    monkeypatch.setattr(HTTPResponse, "read", broken)
    if times == 1:
        assert store.read_range("log/a", 4, 3) == b"3456"
        return
    with pytest.raises(StoreFailed, match="bad record mac"):
        store.read_range("log/a", 4, 3)
    with pytest.raises(StoreFailed, match="bad record mac"):
        store.load_manifest()


def test_missing_token_file_is_a_store_failure(
    storage: ObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(StoreFailed, match="token"):
        open_s3(TARGET, storage.url).read_range("log/a", 4, 3)
    with pytest.raises(StoreFailed, match="token"):
        open_s3(TARGET, storage.url).load_manifest()
