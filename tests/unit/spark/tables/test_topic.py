"""A topic that is not what the table was written from stops the pipeline, with the offset and what helps a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark.errors import DataLoss
from spark.micro_batches import ClusterChanged, Loss, LossKind, loss_text
from spark.tables.loop import Stopped
from spark.tables.pipeline import parse_pipeline
from spark.tables.topic import TopicSource

PIPELINE = parse_pipeline("namesrv: h:1\ntopic: T\ntable: {format: parquet, location: /t}\n", Path("/p.yaml"))


class Progress:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def end_here(self) -> None:
        pass

    def latest(self, start: dict[str, Any], *, is_limited: bool) -> dict[str, Any]:
        raise self._error


@pytest.mark.parametrize("kind", ["deleted", "cut", "gone", "recreated"])
def test_lost_messages_stop_a_pipeline_with_their_offsets(kind: LossKind, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TopicSource(PIPELINE, is_once=True)
    said = loss_text([Loss(kind, ("T", "a", 0), 3, 10, 10)])
    monkeypatch.setattr(source, "_progress", Progress(DataLoss(said)))
    with pytest.raises(Stopped) as caught:
        source.latest({})
    assert "offsets 3 to 9" in str(caught.value)
    assert "new table" in str(caught.value)
    assert "checkpoint" not in str(caught.value)
    assert "failOnDataLoss" not in str(caught.value)


def test_another_cluster_stops_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TopicSource(PIPELINE, is_once=True)
    monkeypatch.setattr(source, "_progress", Progress(ClusterChanged("x")))
    with pytest.raises(Stopped, match="was written from another cluster than the one that namesrv h:1 leads to"):
        source.latest({})
