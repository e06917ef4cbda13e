"""The test kit in tests that plugins of pytest run: ours with the guide's examples, AnyIO's, and trio's clocks."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import trio.testing

from mq.client import Message, Producer
from mq.testing import open_kit

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "testing.md"
PLUGIN = "mq.pytest_plugin"


def session(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A session of pytest in a directory; the plugin is loaded as an installation would load it."""
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-W", "error", *arguments]
    # With bytecode on the disk: pytest rewrites all modules of the plugin's package, which takes seconds.
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [*command, "--rootdir", "."],
        check=False,
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment,
        timeout=120,
    )


def examples(text: str) -> dict[str, str]:
    """The source of each Python example by the file that its first line names."""
    found = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == text.count("```python"), "an example without a name"
    return dict(found)


def test_entry_point_is_the_plugin() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    [(name, value)] = re.findall(r'^\[project\.entry-points\.pytest11\]\n"(.*?)" = "(.*?)"$', text, re.MULTILINE)
    assert EntryPoint(name, value, "pytest11").load().__name__ == name == PLUGIN


def test_importing_the_plugin_costs_nothing() -> None:
    code = f"""
import sys, pytest
before = set(sys.modules)
import {PLUGIN}
print(sorted(set(sys.modules) - before))
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert result.stdout == f"['mq', '{PLUGIN}']\n"


@pytest.mark.slow
@pytest.mark.process
def test_examples_of_the_guide_pass(tmp_path: Path) -> None:
    files = examples(GUIDE.read_text())
    del files["conftest.py"]  # pytest-asyncio is not installed here
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    result = session(tmp_path)
    assert result.returncode == 0, result.stdout
    assert re.search(r"8 passed", result.stdout), result.stdout


@pytest.mark.slow
def test_fixtures_take_their_settings_from_the_marker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
import pytest
from raftmq import Message
from raftmq.sync import SyncProducer

kits = []

@pytest.mark.raftmq(replicas=3)
def test_three(raftmq_kit):
    kits.append(raftmq_kit.namesrv)
    raftmq_kit.lose_leader()

def test_fails(raftmq_kit):
    kits.append(raftmq_kit.namesrv)
    with SyncProducer(raftmq_kit.namesrv) as producer:
        producer.send(Message("Orders", b"one"))
    raftmq_kit.assert_stored("Orders", b"two")

def test_next_test_gets_a_new_kit(raftmq_kit):
    assert raftmq_kit.topics() == []
    assert raftmq_kit.namesrv not in kits

@pytest.mark.raftmq(no_such_setting=1)
def test_has_a_wrong_setting(raftmq_kit):
    pass

@pytest.mark.raftmq(3)
def test_has_no_keyword(raftmq_kit):
    pass
""")
    result = session(tmp_path, "--strict-markers")
    assert "2 passed" in result.stdout, result.stdout
    assert "1 failed" in result.stdout
    assert "2 errors" in result.stdout
    assert "takes keywords, such as raftmq(replicas=3), not raftmq(3)" in result.stdout
    assert "Orders lacks the expected [b'two'], and has the unexpected [b'one']" in result.stdout
    assert "no_such_setting" in result.stdout


WITHOUT_SERVERS = """
import sys

class NoServers:
    def find_spec(self, name, path=None, target=None):
        if name == "mq.testing":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def invalidate_caches(self):
        pass

sys.meta_path.insert(0, NoServers())
"""


@pytest.mark.slow
def test_missing_servers_error_names_the_package_to_install(tmp_path: Path) -> None:
    code = f"{WITHOUT_SERVERS}\nimport raftmq.testing"
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    last = result.stderr.splitlines()[-1]
    assert (
        last == "ImportError: raftmq.testing runs real brokers, which are not installed: pip install 'raftmq[testing]'"
    )
    (tmp_path / "conftest.py").write_text(WITHOUT_SERVERS)
    (tmp_path / "test_it.py").write_text("def test_it(raftmq_kit): pass\n")
    found = session(tmp_path)
    assert "the fixtures of raftmq run real brokers: pip install 'raftmq[testing]'" in found.stdout
    assert found.returncode == 1


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.anyio
async def test_kit_runs_in_anyio_tests() -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Letters", b"late", delay=3600.0))
        await kit.advance(hours=1)
        kit.assert_stored("Letters", b"late")


async def test_trio_with_a_clock_that_jumps(autojump_clock: trio.testing.MockClock) -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Letters", b"late", delay=2.0))
        await trio.sleep(3)  # the clock of the brokers runs with that of the event loop
        kit.assert_stored("Letters", b"late")


async def test_plugin_works_with_a_stopped_trio_clock(mock_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ValueError, match="use one that jumps when all tasks wait"):
        async with open_kit():
            pass
