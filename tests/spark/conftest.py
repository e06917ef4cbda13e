"""One Spark and one cluster for all tests: each takes long to start on a busy machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.installed import missing
from tests.spark.spark_faults import may_be_tried_again
from tests.spark.stage import Stage
from tests.spark.table_commands import Place
from tests.support.object_storage import ENVIRONMENT

MISSING = missing()
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_report_header() -> list[str]:
    return [f"raftmq: the tests with Spark are left out. {MISSING}"] if MISSING else []


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage.open(tmp_path_factory.mktemp("cluster")) as opened:
        yield opened


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.update(ENVIRONMENT)  # Spark's processes have what there was when the first one was started
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("raftmq tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    yield made
    made.stop()


@pytest.fixture
def read(session: Any, stage: Stage) -> Callable[..., Any]:
    """A batch read with these options."""

    def load(**options: str) -> Any:
        return session.read.format("raftmq").options(**{"namesrv": stage.namesrv, **options}).load()

    return load


@pytest.fixture
def stream(session: Any, stage: Stage) -> Callable[..., Any]:
    """A streaming read with these options."""

    def load(**options: str) -> Any:
        return session.readStream.format("raftmq").options(**{"namesrv": stage.namesrv, **options}).load()

    return load


class Query:
    """A streaming query that writes Parquet files, with its checkpoint."""

    def __init__(self, session: Any, directory: Path) -> None:
        self._session = session
        self._directory = directory

    def run(self, frame: Any) -> Any:
        """Read what there is now; returns the query, which has ended. Raises StreamingQueryException.

        Spark gives the Python process of a query ten seconds to start: on a busy machine it is started again.
        """
        from pyspark.errors import StreamingQueryException

        for _ in range(4):
            try:
                return self._run_once(frame)
            except StreamingQueryException as error:
                if not may_be_tried_again(error):
                    raise
        return self._run_once(frame)

    def _run_once(self, frame: Any) -> Any:
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(600), "the query has not ended within ten minutes"
        return query

    def start(self, frame: Any, **trigger: Any) -> Any:
        """Start it with a trigger."""
        return (
            frame.writeStream.format("parquet")
            .option("path", str(self._directory / "rows"))
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(**trigger)
            .start()
        )

    def rows(self) -> list[Any]:
        """What was written so far."""
        rows: list[Any] = self._session.read.parquet(str(self._directory / "rows")).collect()
        return rows


@pytest.fixture
def query(session: Any, tmp_path: Path) -> Query:
    return Query(session, tmp_path)


@pytest.fixture
def place(stage: Stage, tmp_path: Path) -> Iterator[Place]:
    made = Place(stage, tmp_path)
    yield made
    for each in made.commands:
        each.close()
