"""Builds the options of spark-submit for a pipeline, and checks them before Java does. No Spark here."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spark.option_table import nearest
from spark.tables.installed import settings_of
from spark.tables.pipeline import Pipeline

LOCAL: Final = "local[*]"
DRIVER_MEMORY: Final = "2g"
_MASTERS: Final = re.compile(
    r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://[^\s/]+:\d+(,[^\s/]+:\d+)*|yarn|k8s://\S+"
)
_LOOPBACK: Final = ("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1")
_SHIPPED: Final = {
    "spark.submit.pyFiles": "--py-files",
    "spark.archives": "--archives",
    "spark.files": "--files",
    "spark.jars": "--jars",
}
_PYTHON: Final = "spark.pyspark.python"
_OPTIONS: Final = ("spark.master", "spark.driver.memory", _PYTHON, *_SHIPPED)
_IMAGES: Final = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
_HADOOP: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


class SparkUnavailable(Exception):
    """Spark cannot be started like this: the message tells the missing or wrong part. Nothing was started."""


def is_local(master: str) -> bool:
    """Whether driver and executors are on this machine."""
    return master.startswith("local")


def master_of(pipeline: Pipeline, argument: str | None) -> str:
    """The master of Spark: as the command says, else as the file does, else this machine."""
    return argument or pipeline.spark.get("spark.master", LOCAL)


def python_of(pipeline: Pipeline, environment: Mapping[str, str]) -> str:
    """The interpreter of tasks: as the file says, else as the environment does, else this process's."""
    return pipeline.spark.get(_PYTHON) or environment.get("PYSPARK_PYTHON") or sys.executable


def submit_arguments(
    pipeline: Pipeline,
    master: str,
    driver_memory: str | None,
    packages: tuple[str, ...],
    executors: Mapping[str, str],
    environment: Mapping[str, str],
) -> list[str]:
    """The options of spark-submit.

    Args:
        driver_memory: as the command says; None for the file's value, else `DRIVER_MEMORY`.
        packages: of Maven.
        executors: variables that executors of a cluster get.
        environment: this process's, in which YARN looks for its settings.

    Raises SparkUnavailable.
    """
    settings = settings_of(pipeline)
    _check(master, settings, environment)
    memory = driver_memory or settings.get("spark.driver.memory", DRIVER_MEMORY)
    arguments = ["--master", master, "--driver-memory", memory]
    if packages:
        arguments += ["--packages", ",".join(packages)]
    for name, option in _SHIPPED.items():
        if name in settings:
            arguments += [option, ",".join(_files_of_setting(name, settings[name], pipeline.file.parent.absolute()))]
    # Extensions must be known before the session is made.
    conf_settings = [f"{name}={value}" for name, value in settings.items() if name not in _OPTIONS]
    if is_local(master):
        conf_settings = [*_LOOPBACK, *conf_settings]
    else:
        conf_settings += [f"spark.executorEnv.{name}={value}" for name, value in executors.items()]
    for each in conf_settings:
        arguments += ["--conf", each]
    return arguments


def session_settings(pipeline: Pipeline) -> dict[str, str]:
    """The settings that the session gets once more: spark-submit has replaced them, since they were not its options."""
    return {name: value for name, value in settings_of(pipeline).items() if name not in _OPTIONS}


def _check(master: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    if not _MASTERS.fullmatch(master):
        raise SparkUnavailable(
            f"{master!r} is not a master of Spark{nearest(master, ('local', 'yarn'))}: there are local[*], "
            f"spark://HOST:PORT, yarn and k8s://https://HOST:PORT"
        )
    if settings.get("spark.submit.deployMode", "client") != "client":
        raise SparkUnavailable(
            "spark.submit.deployMode must be client: the driver of a pipeline is on the machine on which raftmq table "
            "runs. To have it in the cluster, run that command there"
        )
    if master == "yarn":
        directories = [(name, environment[name]) for name in _HADOOP if environment.get(name)]
        if not directories:
            raise SparkUnavailable(
                "the master yarn needs the variable HADOOP_CONF_DIR or YARN_CONF_DIR: the directory with the "
                "core-site.xml and yarn-site.xml of the cluster"
            )
        if not any((Path(directory) / "yarn-site.xml").is_file() for _, directory in directories):
            raise SparkUnavailable(
                f"the master yarn needs the settings of the cluster, and {directories[0][0]} is {directories[0][1]}, "
                f"where no yarn-site.xml is"
            )
    if master.startswith("k8s://") and not any(name in settings for name in _IMAGES):
        raise SparkUnavailable(
            f"a master of Kubernetes needs an image for its executors, with Spark, Python and raftmq[tables]: set "
            f"spark: {{{_IMAGES[0]}: ...}}"
        )


def _files_of_setting(name: str, value: str, beside: Path) -> list[str]:
    """The files of a setting; relative paths begin at the file of the pipeline. Raises SparkUnavailable."""
    urls: list[str] = []
    for each in filter(None, (part.strip() for part in value.split(","))):
        path, mark, alias = each.partition("#")
        if ":" in path:  # a URL, such as local:/opt/x.zip or hdfs://...
            urls.append(each)
            continue
        local = beside / Path(path).expanduser()
        if not any(character in path for character in "*?[{") and not local.exists():
            raise SparkUnavailable(f"{name} names {path}, and {local} is not there")
        urls.append(f"{local}{mark}{alias}")
    return urls
