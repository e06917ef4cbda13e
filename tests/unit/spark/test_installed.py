"""What somebody reads who has not installed everything that Spark, or the demonstration of Iceberg, needs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import trio

from spark import installed
from spark.demo_iceberg import IcebergMissing, fetch_iceberg

ROOT = Path(__file__).parents[3]


@pytest.fixture
def all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))


def java(directory: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    (directory / "bin").mkdir()
    (directory / "bin" / "java").write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    (directory / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(directory))


def test_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert installed.missing() == "Spark needs the Python package pyspark: pip install 'raftmq[spark]'"


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize(("says", "found"), [('openjdk version "11.0.2"', "Java 11"), ("not found", "not Java")])
def test_too_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, found: str) -> None:
    java(tmp_path, monkeypatch, says)

    told = installed.missing()

    assert told is not None
    assert f"needs Java 17 or later, {tmp_path}/bin/java is {found}: apt install openjdk-17-jre-headless" in told


@pytest.mark.usefixtures("all_packages")
def test_missing_java_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert installed.missing() == (
        "Spark needs Java 17 or later, java is not there: apt install openjdk-17-jre-headless"
    )


@pytest.mark.usefixtures("all_packages")
def test_complete_installation_reports_nothing_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path, monkeypatch, 'openjdk version "21.0.1" 2023-10-17')

    assert installed.missing() is None


@pytest.mark.parametrize("module", ["pyspark_raftmq", "spark.source"])
def test_missing_pyspark_error_names_the_package(module: str) -> None:
    program = f"import sys; sys.modules['pyspark'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: the format raftmq needs PySpark 4.2 or later: pip install 'raftmq[spark]'"
    )


INSTALL = 'for each; do case $before in --target) mkdir -p "$each/pyspark";; esac; before=$each; done\n'
UNRESOLVED = "echo 'Picked up options\n:: unresolved dependency: org.apache.iceberg\n\tat java' >&2; exit 1\n"


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is started instead of Python."""
    path = tmp_path / "python"
    monkeypatch.setattr("spark.demo_iceberg.sys.executable", str(path))
    return path


def program(python: Path, pip: str, spark: str) -> None:
    python.write_text(f'#!/bin/sh\nif [ "$1" = -m ]; then\n{pip}else\n{spark}fi\n')
    python.chmod(0o755)


def fetch(directory: Path) -> list[str]:
    said: list[str] = []
    trio.run(fetch_iceberg, directory, {}, said.append)
    return said


def test_interrupted_installation_is_repeated(python: Path, tmp_path: Path) -> None:
    directory = tmp_path / "iceberg"
    program(python, f"{INSTALL}echo 'ERROR: no network' >&2; exit 1\n", "true\n")
    with pytest.raises(IcebergMissing, match="pip failed: ERROR: no network"):
        fetch(directory)
    assert not directory.exists()
    program(python, INSTALL, "true\n")
    assert len(fetch(directory)) == 2
    program(python, "exit 1\n", 'echo "$PYSPARK_SUBMIT_ARGS" | grep -q iceberg-spark-runtime\n')
    assert len(fetch(directory)) == 1, "it is installed once"


def test_packages_that_maven_lacks_are_reported(python: Path, tmp_path: Path) -> None:
    program(python, INSTALL, UNRESOLVED)
    with pytest.raises(IcebergMissing, match=r"Spark failed: :: unresolved dependency: org\.apache\.iceberg$"):
        fetch(tmp_path / "iceberg")
