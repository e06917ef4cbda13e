"""What tests of tables of Parquet files share: a topic, its table, and its dead letters."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark.tables.job import run
from spark.tables.pipeline import Pipeline, parse_pipeline
from spark.tables.state_directory import StateDirectory
from tests.spark.stage import Stage

EXPLICIT = "{format: json, schema: {id: bigint, name: string}}"


def body(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", **more}).encode()


class Case:
    """A topic, a topic for dead letters, and a table."""

    def __init__(self, session: Any, stage: Stage, directory: Path) -> None:
        self._session = session
        self.stage = stage
        self.topic = stage.topic("Orders", 2)
        self.dead = stage.topic("Dead", 2)
        self.location = directory / "table"

    def pipeline(self, decode: str, more: str = "") -> Pipeline:
        text = (
            f"name: t\nnamesrv: {self.stage.namesrv}\ntopic: {self.topic}\ndecode: {decode}\n"
            f'table: {{format: parquet, location: "{self.location}"}}\n'
            f"dead_letters: {{topic: {self.dead}, stop_above_percent: 80}}\n{more}\n"
        )
        return parse_pipeline(text, Path("/p.yaml"))

    def run(self, of: Pipeline, step: Callable[[str], None] = lambda _: None, *, backward: bool = False) -> None:
        state = StateDirectory(of.state)
        state.open()
        try:
            run(of, self._session, state, threading.Event(), step, backward=backward)
        finally:
            state.close()

    def rows(self) -> list[Any]:
        found = self._session.read.option("mergeSchema", "true").parquet(str(self.location))
        return list(found.orderBy("_queue_id", "_queue_offset").collect())

    def dead_letters(self) -> list[tuple[bytes, str]]:
        found = (
            self._session.read.format("raftmq")
            .option("namesrv", self.stage.namesrv)
            .option("subscribe", self.dead)
            .load()
            .collect()
        )
        return sorted((bytes(row.body), row.properties["RAFTMQ_TABLE_REASON"]) for row in found)
