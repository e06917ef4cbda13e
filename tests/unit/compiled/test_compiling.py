"""``python -m mq.compiled``: what it says when something is missing, and that a process runs without the module."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import raftlog.compiled
import raftlog.compiled.loaded
from mq.compiled import IS_COMPILED, PURE_PYTHON, __main__
from raftlog.compiled import building
from raftlog.compiled.sources import require_current, source_sha256

LIBRARY = "plain_sends.any.so"
ROOT = Path(__file__).parents[3]


def test_compiling_without_a_compiler_names_the_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert __main__.main() == __main__.IMPOSSIBLE_HERE
    assert "there is no C compiler" in capsys.readouterr().out


@pytest.mark.parametrize("compiler", ["", "no-such-wrapper gcc"])
def test_compiler_variable_may_be_empty_or_a_wrapper_with_arguments(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(shutil, "which", asked.append)
    building.missing_tool()
    (program,) = asked
    assert program == "no-such-wrapper" if compiler else program and " " not in program


@pytest.mark.skipif(bool(os.environ.get(PURE_PYTHON)), reason=f"{PURE_PYTHON} is set")
@pytest.mark.skipif(building.missing_tool() is not None, reason="a tool to compile with is missing")
def test_compiled_modules_are_present() -> None:
    """Otherwise the tests that compare both forms would be skipped without anybody noticing."""
    assert IS_COMPILED, "run python -m mq.compiled"
    assert raftlog.compiled.loaded.IS_COMPILED, "run python -m mq.compiled"


def test_sanitizer_script_names_existing_modules() -> None:
    """They run for a part of continuous integration only: a name that had changed came to light there."""
    script = (ROOT / "deploy" / "sanitize.sh").read_text()
    tests = re.findall(r"tests/[\w/]+\.py", script)
    modules = [
        f"{package}/compiled/{module}.pyx"
        for package, module in re.findall(r"from (\w+)\.compiled import (\w+)", script)
    ]
    assert tests
    assert modules
    assert [each for each in (*tests, *modules) if not (ROOT / each).exists()] == []


def test_compiling_without_python_headers_names_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: "/usr/bin/cc")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert __main__.main() == __main__.IMPOSSIBLE_HERE
    assert f"{tmp_path}/Python.h is missing" in capsys.readouterr().out


@pytest.mark.slow
def test_failing_compiler_leaves_everything_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "missing_tool", lambda: None)
    monkeypatch.setattr(__main__, "_PACKAGES", {"mq.compiled": tmp_path})
    (tmp_path / "plain_sends.pyx").write_text("this is no Cython")
    assert __main__.main() == __main__.FAILED
    assert "could not compile" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["plain_sends.pyx"]


@pytest.mark.parametrize(("is_compiled", "kept"), [(True, "compiled data path"), (False, "data path stays in Python")])
def test_compiling_in_a_read_only_directory_names_the_form_in_use(
    is_compiled: bool,
    kept: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(__main__, "missing_tool", lambda: None)
    monkeypatch.setattr(__main__, "IS_COMPILED", is_compiled)
    monkeypatch.setattr(__main__, "_PACKAGES", {"mq.compiled": tmp_path / "missing"})
    assert __main__.main() == __main__.FAILED
    said = capsys.readouterr().err
    assert kept in said
    assert str(tmp_path / "missing") in said


def compiles(command: list[str], *, cwd: str, **_: object) -> subprocess.CompletedProcess[str]:
    """A compiler that works at once."""
    built = Path(cwd) / "mq" / "compiled"
    built.mkdir(parents=True)
    (built / LIBRARY).write_text("a library")
    return subprocess.CompletedProcess(command, 0, "", "")


def test_two_processes_may_compile_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "plain_sends.pyx").touch()
    monkeypatch.setattr(subprocess, "run", compiles)
    others: list[Path] = []
    replace = Path.replace

    def replace_behind_another(path: Path, target: Path) -> Path:
        if not others:
            others.append(path)
            others.extend(building.compile_package("mq.compiled", tmp_path))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_behind_another)
    assert building.compile_package("mq.compiled", tmp_path) == others[1:]
    assert sorted(path.name for path in tmp_path.iterdir()) == [LIBRARY, "plain_sends.pyx"]


def test_library_is_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A broker that runs has the old one mapped: writing into that file would end the process.
    (tmp_path / "plain_sends.pyx").touch()
    library = tmp_path / LIBRARY
    library.write_text("the old library")
    with library.open() as running:
        monkeypatch.setattr(subprocess, "run", compiles)
        building.compile_package("mq.compiled", tmp_path)
        assert running.read() == "the old library"
    assert library.read_text() == "a library"


@pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")
@pytest.mark.parametrize(("change", "used"), [("", "True"), ("# A later version.\n", "False")])
def test_library_of_another_version_is_not_used(tmp_path: Path, change: str, used: str) -> None:
    # An upgrade replaces the sources, but not what was compiled beside them.
    package = tmp_path / "mq" / "compiled"
    shutil.copytree(Path(__main__.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mq" / "__init__.py").touch()
    with (package / "plain_sends.pyx").open("a") as source:
        source.write(change)
    code = "import mq.compiled; print(mq.compiled.IS_COMPILED)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == used


@pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")
@pytest.mark.parametrize("missing", ["plain_sends", "queue_merge", "received_records"])
def test_compiled_modules_are_unused_if_one_library_is_missing(tmp_path: Path, missing: str) -> None:
    # As after an upgrade to a version with one more.
    package = tmp_path / "mq" / "compiled"
    ignored = shutil.ignore_patterns("__pycache__", f"{missing}.*.so")
    shutil.copytree(Path(__main__.__file__).parent, package, ignore=ignored)
    (tmp_path / "mq" / "__init__.py").touch()
    code = "import mq.compiled; print(mq.compiled.IS_COMPILED)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.slow
@pytest.mark.skipif(building.missing_tool() is not None, reason="a tool to compile with is missing")
def test_module_may_be_made_from_several_files(tmp_path: Path) -> None:
    package = tmp_path / "made" / "fast"
    package.mkdir(parents=True)
    for directory in (package.parent, package):
        (directory / "__init__.py").touch()
    (package / "adding.pyx").write_text(
        'include "one.pxi"\nfrom made.fast.shared cimport TWO\n'
        "cdef extern from *:\n    const char *SOURCE_SHA256\n"
        "COMPILED_FROM = SOURCE_SHA256.decode()\nTHREE = ONE + TWO\n"
    )
    (package / "doubling.pyx").write_text("from made.fast.shared cimport TWO\nFOUR = 2 * TWO\n")
    (package / "one.pxi").write_text("cdef enum:\n    ONE = 1\n")
    (package / "shared.pxd").write_text("cdef enum:\n    TWO = 2\n")
    names = [path.name.partition(".")[0] for path in building.compile_package("made.fast", package)]
    assert names == ["adding", "doubling"]
    code = "from made.fast.adding import *; from made.fast.doubling import *; print(THREE, FOUR, COMPILED_FROM)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "4", source_sha256(package)]


@pytest.mark.parametrize("changed", ["a.pyx", "b.pxi", "c.pxd"])
def test_change_of_any_source_requires_compiling(changed: str, tmp_path: Path) -> None:
    for name in ("a.pyx", "b.pxi", "c.pxd"):
        (tmp_path / name).write_text("# the first version")
    compiled_from = source_sha256(tmp_path)
    (tmp_path / "d.pyi").write_text("# no source")
    require_current(tmp_path, compiled_from)
    (tmp_path / changed).write_text("# the next version")
    with pytest.raises(ImportError, match="compiled from other sources"):
        require_current(tmp_path, compiled_from)


def test_environment_switches_the_module_off() -> None:
    code = "import mq.compiled; print(mq.compiled.IS_COMPILED)"
    environment = {**os.environ, PURE_PYTHON: "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_installation_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "raftlog" / "compiled"
    package.mkdir(parents=True)
    monkeypatch.setattr(raftlog.compiled, "__file__", str(package / "__init__.py"))
    assert __main__.main() == __main__.IMPOSSIBLE_HERE
    assert f"{tmp_path} is no checkout" in capsys.readouterr().out
    assert not list(package.iterdir())


def test_stubs_of_compiled_code_name_types() -> None:
    root = Path(__file__).parents[3]
    stubs = [path for folder in ("mq", "raftlog") for path in (root / folder).rglob("*.pyi")]
    breaches = {str(path.relative_to(root)) for path in stubs if re.search(r"\bAny\b", path.read_text())}
    assert not breaches, f"{breaches} use Any: the type checker would see nothing of what is compiled"
