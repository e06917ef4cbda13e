"""`raftmq table` on a cluster of Hadoop YARN, whose parts are killed."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.tables.shipped_code import NAME
from tests.interop.clients import BuildFailed
from tests.spark.table_commands import BATCH, SECONDS_MAX, Place, TableCommand, bare_python, is_alive, wait_until
from tests.spark.yarn_servers import EXECUTOR, JARS, MASTER, Yarn, missing, open_yarn, prepare

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    if reason := missing():
        pytest.skip(f"YARN: {reason}")
    try:
        jars = prepare()
    except BuildFailed as error:
        pytest.skip(f"YARN is not available: {error}")
    with open_yarn(jars, tmp_path_factory.mktemp("yarn")) as opened:
        yield opened


@pytest.fixture
def file(place: Place, yarn: Yarn) -> Path:
    """A pipeline whose executors have an interpreter from an archive, which is nowhere else, and not this package."""
    bare_python(place.directory / "made" / "bin" / "python")
    with tarfile.open(place.directory / "env.tar.gz", "w:gz") as packed:
        packed.add(place.directory / "made", ".")
    settings = {
        "spark.master": "yarn",
        "spark.archives": "env.tar.gz#env",
        "spark.pyspark.python": "./env/bin/python",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.executor.instances": "1",
        "spark.yarn.am.memory": "512m",
        "spark.yarn.jars": f"local:{JARS}/*",
        "spark.yarn.stagingDir": f"file:{yarn.directory / 'staging'}",
    }
    return place.file("yarn", f"spark: {json.dumps(settings)}")


def start(place: Place, yarn: Yarn, command: str, file: Path) -> TableCommand:
    environment = {"HADOOP_CONF_DIR": str(yarn.settings), "PYTHONPATH": ""}
    return place.start(command, file, "--json", environment=environment)


def commit(number: int, of: TableCommand) -> None:
    of.until(lambda told: told.get("commit") == number and "rate" in told)


def test_pipeline_survives_its_executor_and_its_application_master(place: Place, yarn: Yarn, file: Path) -> None:
    place.send(6 * BATCH)
    ran = start(place, yarn, "run", file)
    commit(1, ran)
    assert yarn.files(NAME), "no executor got the code"
    executor = yarn.kill(EXECUTOR)
    commit(3, ran)  # the second one may have been read before
    assert yarn.containers(EXECUTOR) != [executor]
    yarn.kill(MASTER)
    assert ran.ended() == 0, ran.errors()
    assert yarn.came_to("AppAttempt", "RUNNING") == 2
    assert json.loads(ran.printed[-1])["messages"] == 6 * BATCH
    assert place.ids() == Counter(range(6 * BATCH))


def test_pipeline_continues_after_its_application_failed_and_its_driver_died(
    place: Place, yarn: Yarn, file: Path
) -> None:
    place.send(8 * BATCH)
    once = place.directory / "once.yaml"
    once.write_text(file.read_text().replace('"spark.master"', '"spark.yarn.maxAppAttempts": "1", "spark.master"'))
    first = start(place, yarn, "run", once)
    commit(1, first)
    yarn.kill(MASTER)
    assert first.ended() == 1, first.errors()
    assert "The table has the messages before" in first.errors()
    assert "unpersist" not in first.errors(), "the reason is hidden by what came after it"
    assert yarn.came_to("App", "FAILED") == 1

    second = start(place, yarn, "run", file)
    second.until(lambda told: "rate" in told)
    driver = second.driver()
    os.kill(driver, signal.SIGKILL)
    assert second.ended() == 1, second.errors()
    wait_until(lambda: not is_alive(driver) and not yarn.containers(EXECUTOR), SECONDS_MAX, "executors go on")
    assert sum(place.ids().values()) < 8 * BATCH

    third = start(place, yarn, "run", file)
    assert third.ended() == 0, third.errors()
    assert place.ids() == Counter(range(8 * BATCH))
    verified = start(place, yarn, "verify", file)
    assert verified.ended() == 0, verified.errors()
    assert json.loads("".join(verified.printed))["equal"]
