"""How Spark is started for a pipeline: the options of spark-submit, and what is refused before Java starts."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark.tables.pipeline import parse_pipeline
from spark.tables.submission import SparkUnavailable, master_of, python_of, session_settings, submit_arguments

CLUSTER = "spark://a:7077,b:7077"


def arguments(
    beside: Path,
    spark: str = "",
    master: str | None = None,
    memory: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    text = f"namesrv: h:1\ntopic: T\ntable: {{format: parquet, location: t}}\nspark: {{{spark}}}\n"
    pipeline = parse_pipeline(text, beside / "p.yaml")
    executors = {"RAFTMQ_TLS": "on"}
    return submit_arguments(
        pipeline, master_of(pipeline, master), memory, ("g:a:1", "g:b:2"), executors, environment or {}
    )


def told(found: list[str]) -> dict[str, str]:
    """The settings among the options."""
    pairs = [each.partition("=") for option, each in itertools.pairwise(found) if option == "--conf"]
    return {name: value for name, _, value in pairs}


def test_local_spark_uses_only_the_loopback_address(tmp_path: Path) -> None:
    found = arguments(tmp_path)
    assert found[:6] == ["--master", "local[*]", "--driver-memory", "2g", "--packages", "g:a:1,g:b:2"]
    settings = told(found)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.executorEnv.RAFTMQ_TLS" not in settings


def test_relative_files_are_shipped_to_executors(tmp_path: Path) -> None:
    for name in ("raftmq.zip", "env.tar.gz"):
        (tmp_path / name).touch()
    spark = (
        f"spark.master: '{CLUSTER}', spark.driver.memory: 3g, spark.driver.host: d, spark.executor.memory: 1g, "
        "spark.submit.pyFiles: 'raftmq.zip, local:/opt/x.zip', spark.archives: env.tar.gz#env, spark.jars: 'jars/*.jar'"
    )
    found = arguments(tmp_path, spark)
    assert found[:12] == [
        *("--master", CLUSTER, "--driver-memory", "3g", "--packages", "g:a:1,g:b:2"),
        *("--py-files", f"{tmp_path}/raftmq.zip,local:/opt/x.zip", "--archives", f"{tmp_path}/env.tar.gz#env"),
        *("--jars", f"{tmp_path}/jars/*.jar"),
    ]
    settings = told(found)
    assert (settings["spark.driver.host"], settings["spark.executorEnv.RAFTMQ_TLS"]) == ("d", "on")
    once = {"spark.master", "spark.driver.memory", "spark.submit.pyFiles", "spark.archives", "spark.jars"}
    assert not once & settings.keys()
    text = f"namesrv: h:1\ntopic: T\ntable: {{format: parquet, location: t}}\nspark: {{{spark}}}\n"
    again = session_settings(parse_pipeline(text, tmp_path / "p.yaml"))
    assert not once & again.keys()
    assert again["spark.executor.memory"] == "1g"


def test_command_options_override_the_file(tmp_path: Path) -> None:
    found = arguments(tmp_path, "spark.master: yarn, spark.driver.memory: 3g", "local[2]", "1g")
    assert found[:4] == ["--master", "local[2]", "--driver-memory", "1g"]


def test_files_of_a_relative_pipeline_are_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "env.tar.gz").touch()
    monkeypatch.chdir(tmp_path)  # Java may be started in another directory
    assert f"{tmp_path}/env.tar.gz#env" in arguments(Path(), "spark.archives: env.tar.gz#env", CLUSTER)


def test_task_interpreter_comes_first_from_the_file(tmp_path: Path) -> None:
    text = "namesrv: h:1\ntopic: T\ntable: {format: parquet, location: t}\n"
    plain = parse_pipeline(text, tmp_path / "p.yaml")
    named = parse_pipeline(f"{text}spark: {{spark.pyspark.python: ./env/bin/python}}\n", tmp_path / "p.yaml")
    environment = {"PYSPARK_PYTHON": "python3.11"}
    assert python_of(plain, {}) == sys.executable
    assert python_of(plain, environment) == "python3.11"
    assert python_of(named, environment) == "./env/bin/python"


def test_yarn_needs_the_settings_of_its_cluster(tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable, match=r"needs the variable HADOOP_CONF_DIR or YARN_CONF_DIR"):
        arguments(tmp_path, master="yarn")
    with pytest.raises(SparkUnavailable, match=r"HADOOP_CONF_DIR is .*, where no yarn-site\.xml is"):
        arguments(tmp_path, master="yarn", environment={"HADOOP_CONF_DIR": str(tmp_path)})
    (tmp_path / "yarn-site.xml").touch()
    found = arguments(tmp_path, master="yarn", environment={"YARN_CONF_DIR": str(tmp_path)})
    assert found[:2] == ["--master", "yarn"]
    assert told(found)["spark.executorEnv.RAFTMQ_TLS"] == "on"


def test_kubernetes_needs_an_image(tmp_path: Path) -> None:
    master = "k8s://https://h:6443"
    with pytest.raises(SparkUnavailable, match=r"set spark: \{spark\.kubernetes\.container\.image: \.\.\.\}"):
        arguments(tmp_path, master=master)
    assert arguments(tmp_path, "spark.kubernetes.container.image: raftmq:1", master)[:2] == ["--master", master]


@pytest.mark.parametrize("master", ["yarn-client", "spark://h", "mesos://h:1", "localhost", "k8s://", "sc://h:1"])
def test_unknown_master_is_refused(master: str, tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable, match=f"'{master}' is not a master of Spark"):
        arguments(tmp_path, master=master)


@pytest.mark.parametrize(
    ("spark", "said"),
    [
        ("spark.submit.deployMode: cluster", r"spark\.submit\.deployMode must be client"),
        ("spark.submit.pyFiles: x.zip", r"spark\.submit\.pyFiles names x\.zip, and .*/x\.zip is not there"),
        ("spark.archives: x.tar.gz#env", r"spark\.archives names x\.tar\.gz"),
    ],
)
def test_impossible_masters_are_refused(spark: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable, match=said):
        arguments(tmp_path, spark)
