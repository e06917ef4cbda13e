"""`raftmq dev` and the commands beside it, and the example of the README, against real processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mq.local_cluster import Ports

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.process, pytest.mark.cold_processes]


def raftmq(*arguments: str, stdin: str = "", seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mq.cli", *arguments],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


@contextmanager
def dev(directory: Path, base_port: int) -> Iterator[str]:
    """A group that is up, stopped by ctrl-C at the end; gives the name server's address."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "mq.cli", "dev", "--dir", str(directory), "--base-port", str(base_port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said = ""
    try:
        for line in process.stdout:
            said += line
            if line.startswith("ready"):
                break
        else:
            pytest.fail(f"dev ended before it was ready:\n{said}")
        yield f"127.0.0.1:{base_port}"
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, f"{said}{rest}"
    assert "stopped" in rest


@pytest.mark.slow
def test_messages_survive_a_stop_and_a_second_start(tmp_path: Path) -> None:
    base = Ports.free(3).namesrv
    with dev(tmp_path, base) as namesrv:
        at = ("--namesrv", namesrv)
        assert raftmq("topic", "create", "Greetings", "--queues", "1", *at).returncode == 0
        assert "Greetings" in raftmq("topic", "list", *at).stdout.split()
        sent = raftmq("produce", "Greetings", "--tag", "en", *at, stdin="one\ntwo\n\nthree\n")
        assert (sent.returncode, sent.stderr) == (0, "3 sent, 3 acknowledged\n")
        [group] = json.loads(raftmq("status", "--json", *at).stdout)
        assert group["durability"] == "quorum-fsync"
        assert sorted(replica["role"] for replica in group["replicas"]) == ["follower", "follower", "leader"]
        assert {replica["lag_entries"] for replica in group["replicas"]} == {0}
    with dev(tmp_path, base) as namesrv:
        at = ("--namesrv", namesrv)
        got = raftmq("consume", "Greetings", "--group", "readers", "--count", "3", *at)
        assert (got.returncode, got.stdout) == (0, "one\ntwo\nthree\n")
        [route] = json.loads(raftmq("topic", "route", "Greetings", "--json", *at).stdout)
        assert (route["write_queues"], len(route["followers"])) == (1, 2)


@pytest.mark.slow
def test_example_of_the_readme_runs(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    with dev(tmp_path, Ports.free(3).namesrv) as namesrv:
        done = subprocess.run(
            [sys.executable, "-c", example.replace("127.0.0.1:9876", namesrv)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert re.search(r"stored in queue \d+ at 0\nhello \('1',\)\n", done.stdout)


def test_status_names_the_unreachable_name_server() -> None:
    port = Ports.free(1).namesrv
    done = raftmq("status", "--namesrv", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_status_reports_missing_keys(tmp_path: Path) -> None:
    """It used to wait for a leader, for a minute."""
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts: [{accessKey: administrator, secretKey: secret-of-ours, admin: true}]\n")
    base_port = str(Ports.free(1).namesrv)
    done = raftmq(
        *("dev", "--dir", str(tmp_path / "d"), "--nodes", "1", "--base-port", base_port),
        *("--set", f"acl_file={accounts}"),
        seconds=50,
    )
    assert done.returncode == 2
    assert "the brokers refuse to answer this process" in done.stderr
    assert "RAFTMQ_ACCESS_KEY" in done.stderr


def test_servers_for_the_tests_of_another_language() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mq.cli", "dev", "--ephemeral", "--port", "0", "--json", "--until-stdin-closes"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    [group] = ready["broker_groups"]
    [replica] = group["replicas"]
    assert (group["leader"], replica["node_id"]) == ("n0", "n0")
    directory = Path(group["logs"]).parent
    assert (directory / "n0").is_dir()
    sent = raftmq("produce", "Greetings", "--namesrv", ready["namesrv"], "--json", stdin="hello\n")
    assert json.loads(sent.stdout)["acknowledged"] == 1, sent.stderr
    rest, _ = process.communicate(timeout=60)  # closes its standard input
    assert (process.returncode, rest) == (0, "")
    assert not directory.exists()
