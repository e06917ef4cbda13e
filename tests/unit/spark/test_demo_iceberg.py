"""The demonstration fetches what it needs for Iceberg, and says why when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from spark.demo_iceberg import IcebergMissing, fetch_iceberg

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


def test_packages_that_maven_lacks_are_named(python: Path, tmp_path: Path) -> None:
    program(python, INSTALL, UNRESOLVED)
    with pytest.raises(IcebergMissing, match=r"Spark failed: :: unresolved dependency: org\.apache\.iceberg$"):
        fetch(tmp_path / "iceberg")
