"""The packages and settings that table formats require of the installed Spark. Does not use Spark."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from spark.tables.pipeline import Format, Pipeline

PACKAGES: Final[dict[tuple[Format, str], tuple[str, ...]]] = {
    ("iceberg", "4.1"): ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",),
    ("delta", "4.1"): ("io.delta:delta-spark_4.1_2.13:4.4.0",),
    ("delta", "4.2"): ("io.delta:delta-spark_4.2_2.13:4.4.0",),
}
"""The builds that are tested, by format and version of Spark."""

_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
}
_SETTINGS: Final[dict[Format, dict[str, str]]] = {
    "parquet": {},
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # As many tasks list the files of any table for VACUUM, 10,000 otherwise, and read its log, 50 otherwise.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
        "spark.databricks.delta.snapshotPartitions": "8",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    },
}


class SparkMissing(Exception):
    """The installed Spark cannot write the format. The text names the packages to install."""


def installed_spark() -> str:
    """Return the version of the installed PySpark. Raises SparkMissing."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        raise SparkMissing("PySpark is not installed: pip install 'raftmq[tables]'") from None


def packages_of(pipeline: Pipeline, spark_version: str) -> tuple[str, ...]:
    """Return the Maven packages that Spark must load. Raises SparkMissing if no build is known for this version."""
    if pipeline.packages or pipeline.table.format == "parquet" or "spark.jars" in pipeline.spark:
        return pipeline.packages
    release = ".".join(spark_version.split(".")[:2])
    packages = PACKAGES.get((pipeline.table.format, release))
    if packages is None:
        releases = sorted(each for kind, each in PACKAGES if kind == pipeline.table.format)
        raise SparkMissing(
            f"no tested build of {pipeline.table.format} is known for Spark {release}: install "
            f"'pyspark~={releases[-1]}.0', or name a build in packages, such as "
            f"packages: [{PACKAGES[pipeline.table.format, releases[-1]][0]}]"
        )
    return packages


def settings_of(pipeline: Pipeline) -> Mapping[str, str]:
    """Return the settings of the Spark session: ours, overridden by the file's."""
    return {**_DEFAULTS, **_SETTINGS[pipeline.table.format], **pipeline.spark}
