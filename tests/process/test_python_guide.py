"""The guide for Python users: every example in it does what it says, against real processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio

from mq.broker.state.format_level import LEVEL_NEWEST
from mq.local_cluster import DevCluster
from tests.support.guide_examples import GUIDE, ROOT, compiled, examples, expected_output, run
from tests.support.real_groups import cluster_in_thread, connected
from tests.support.running_broker import SECONDS_MAX

pytestmark = [pytest.mark.process, pytest.mark.slow]


async def level_is_newest(cluster: DevCluster) -> None:
    """Until the group has the features that examples use: a new one raises its format level within seconds."""
    with trio.fail_after(SECONDS_MAX):
        async with connected(cluster, cluster.node_ids[0]) as client:
            while int((await client.info())["raftmq.formatLevel"]) < LEVEL_NEWEST:  # noqa: ASYNC110
                await trio.sleep(0.1)


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster_in_thread(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.portal.call(level_is_newest, cluster.inner)
        yield cluster.namesrv


def test_examples_of_the_guide_print_their_stated_output(namesrv: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = [(page, *each) for page in GUIDE for each in examples(page.read_text())]
    assert len(found) > 15, "the guide has lost its examples"
    names: dict[str, Any] = {}
    for page, line, source in found:
        run(compiled(page, line, source, namesrv), names)
        assert capsys.readouterr().out.splitlines() == expected_output(source), f"the example at {page.name}:{line}"


def test_example_of_the_readme_works(namesrv: str, capsys: pytest.CaptureFixture[str]) -> None:
    [(_, source)] = examples((ROOT / "README.md").read_text())
    run(compile(source.replace("127.0.0.1:9876", namesrv), "README.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("stored in queue")
    assert second == "hello ('1',)"


def test_wrong_example_output_is_detected() -> None:
    text = "a\n```python\nprint(1)  # -> 2\n```\n"
    assert examples(text) == [(2, "print(1)  # -> 2\n")]
    assert expected_output("print(1)  # -> 2\n") == ["2"]
