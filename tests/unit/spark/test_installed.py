"""What somebody reads who has not installed everything that Spark needs: one line that says what to do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from spark import installed

ROOT = Path(__file__).parents[3]


@pytest.fixture
def all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))


def java(directory: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    (directory / "bin").mkdir()
    (directory / "bin" / "java").write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    (directory / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(directory))


def test_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert installed.missing() == "Spark needs the Python package pyspark: pip install 'raftmq[spark]'"


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize(("says", "found"), [('openjdk version "11.0.2"', "Java 11"), ("not found", "not Java")])
def test_java_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, found: str) -> None:
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
