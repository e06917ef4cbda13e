"""The library in a program of one's own, as `docs/embedding.md` describes it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import raftlog
from raftlog import Node, NodeId, NodeSettings, NotLeader, OutcomeUnknown, SnapshotMissing
from tests.free_ports import free_ports
from tests.support.waiting import until_found
from tests.unit.replica.group import CLUSTER
from tests.unit.replica.members import CONFIG, SEGMENT_BYTES

DOCUMENT = Path(raftlog.__file__).parents[1] / "docs" / "embedding.md"


def example() -> str:
    """The program of the page, on a disk of any fill level."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    roomy = code.replace(
        "segment_bytes=1024 * 1024,", "segment_bytes=1024 * 1024, disk_full_ratio=1, disk_pause_ratio=1,"
    )
    assert roomy != code
    return str(roomy)


def test_example_of_the_documentation_runs() -> None:
    done = subprocess.run([sys.executable, "-c", example()], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["n0 10", "n1 10", "n2 10"]
    assert not done.stderr, "a library is quiet unless its program configures a log"


@pytest.mark.parametrize(
    "configure",
    ["import logging; logging.basicConfig(level='INFO')", "import structlog; structlog.configure()"],
)
def test_configured_logger_gets_the_lines_of_nodes(configure: str) -> None:
    command = [sys.executable, "-c", f"{configure}\n{example()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("log_opened") == 3


class Words:
    """Remembers everything."""

    def __init__(self) -> None:
        self.words: list[bytes] = []

    def apply(self, index: int, body: bytes) -> None:
        self.words.append(body)

    def snapshot(self) -> bytes:
        return b" ".join(self.words)

    def restore(self, data: bytes) -> None:
        self.words = data.split()


def node_settings(directory: Path, name: str, ports: dict[str, int]) -> NodeSettings:
    return NodeSettings(
        cluster_id=CLUSTER,
        group="g",
        node_id=NodeId(name),
        directory=str(directory / name),
        listen=("127.0.0.1", ports[name]),
        secret_file=str(directory / "group.secret"),
        members={NodeId(node): f"127.0.0.1:{port}" for node, port in ports.items()},
        segment_bytes=SEGMENT_BYTES,
        disk_full_ratio=1,
        disk_pause_ratio=1,
        core=CONFIG,
    )


async def ready(*nodes: Node[Words]) -> Node[Words]:
    """The one of the nodes that leads."""
    return await until_found(lambda: next((node for node in nodes if node.replica.core.ready), None))


async def test_single_node_restarts_from_a_compacted_log(tmp_path: Path) -> None:
    settings = node_settings(tmp_path, "n0", {"n0": free_ports(1)[0]})
    words = [b"%05d" % number + b"x" * 500 for number in range(100)]
    async with raftlog.open_node(settings, Words) as node:
        await ready(node)
        indexes = [await node.append(word) for word in words]
        assert indexes == list(range(indexes[0], indexes[0] + 100))
        await node.read()
        assert node.machine.words == words
        await node.compact()
        assert node.replica.log.base[0] > 50
        await node.append(b"last")
    async with raftlog.open_node(settings, Words) as node:
        await ready(node)
        await node.read()
        assert node.machine.words == [*words, b"last"]
    (tmp_path / "n0" / "snapshot").unlink()
    with pytest.raises(ExceptionGroup) as raised:
        async with raftlog.open_node(settings, Words):
            pass
    assert raised.group_contains(SnapshotMissing)


async def test_leader_without_its_follower_reports_unknown_outcomes(tmp_path: Path) -> None:
    ports = dict(zip(("n0", "n1"), free_ports(2), strict=True))
    async with raftlog.open_node(node_settings(tmp_path, "n0", ports), Words) as first:
        async with raftlog.open_node(node_settings(tmp_path, "n1", ports), Words) as second:
            leader = await ready(first, second)
            follower = second if leader is first else first
            await leader.append(b"word")
            await follower.read()
            assert follower.machine.words == [b"word"]
            with pytest.raises(NotLeader) as refused:
                await follower.append(b"word")
            assert refused.value.leader == leader.settings.node_id
            await leader.transfer()
            assert await ready(follower) is follower
        with pytest.raises(OutcomeUnknown):
            await first.read()
