"""What a format needs of Spark is known before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.tables.installed import PACKAGES, SparkMissing, packages_of, settings_of
from spark.tables.pipeline import Pipeline, parse_pipeline


def pipeline(table: str, more: str = "") -> Pipeline:
    return parse_pipeline(f"namesrv: h:1\ntopic: T\ntable: {table}\n{more}\n", Path("/p.yaml"))


ICEBERG = "{format: iceberg, name: lake.db.t}"


def test_parquet_needs_no_package() -> None:
    assert packages_of(pipeline("{format: parquet, location: /t}"), "9.9.9") == ()


def test_formats_without_a_build_are_refused() -> None:
    with pytest.raises(
        SparkMissing, match=r"no tested build of iceberg is known for Spark 4\.3: install 'pyspark~=4\.1\.0'"
    ):
        packages_of(pipeline(ICEBERG), "4.3.0")
    assert packages_of(pipeline(ICEBERG), "4.1.4") == PACKAGES["iceberg", "4.1"]
    assert packages_of(pipeline(ICEBERG, "packages: [a:b:1]"), "4.3.0") == ("a:b:1",)
    assert packages_of(pipeline(ICEBERG, "spark: {spark.jars: /x.jar}"), "4.3.0") == ()


def test_settings_of_the_file_win() -> None:
    found = settings_of(pipeline(ICEBERG, "spark: {spark.sql.shuffle.partitions: 3}"))
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert "Iceberg" in found["spark.sql.extensions"]


def test_vacuum_of_delta_does_not_start_ten_thousand_tasks() -> None:
    found = settings_of(pipeline("{format: delta, location: /t}"))
    assert int(found["spark.sql.sources.parallelPartitionDiscovery.parallelism"]) <= 64
