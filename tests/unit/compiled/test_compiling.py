"""``python -m mq.compiled``: what it says when something is missing, and that a process runs without the module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from mq.compiled import PURE_PYTHON, __main__


def test_without_a_compiler_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert __main__.main() == __main__.NOT_COMPILED
    assert "there is no C compiler" in capsys.readouterr().out


def test_without_the_headers_of_python_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: "/usr/bin/cc")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert __main__.main() == __main__.NOT_COMPILED
    assert f"{tmp_path}/Python.h is missing" in capsys.readouterr().out


def test_a_compiler_that_fails_leaves_everything_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "missing_tool", lambda: None)
    monkeypatch.setattr(__main__, "_SOURCES", tmp_path)
    (tmp_path / "plain_sends.pyx").write_text("this is no Cython")
    assert __main__.main() == __main__.NOT_COMPILED
    assert "could not compile" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["plain_sends.pyx"]


def test_the_environment_switches_the_module_off() -> None:
    code = "import mq.compiled; print(mq.compiled.IS_COMPILED)"
    environment = {**os.environ, PURE_PYTHON: "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
