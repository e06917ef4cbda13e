"""What the set-up script says when something is missing that it cannot install itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent

USUAL_PATH = "/usr/bin:/bin"


def run_script(*command: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """A copy of the directory with the set-up script and what it calls."""
    folder = tmp_path / "deploy"
    folder.mkdir()
    for name in ("setup-venv.sh", "find-python.sh"):
        shutil.copy(ROOT / "deploy" / name, folder)
    return folder


PYTHON_WITHOUT_VENV = """#!/bin/sh
case "$2" in
    *version_info\\ \\<*) exit 0 ;;
    *print*) echo 3.11 ;;
    *) exit 1 ;;
esac
"""


def test_missing_venv_module_is_one_line_that_names_the_package(tmp_path: Path, deploy: Path) -> None:
    python = tmp_path / "python-without-venv"
    python.write_text(PYTHON_WITHOUT_VENV)
    python.chmod(0o755)
    done = run_script(deploy / "setup-venv.sh", PYTHON=str(python), PATH=USUAL_PATH)
    assert done.returncode == 2
    assert done.stderr == f"raftmq: {python} has no venv module: apt install python3.11-venv\n"
    assert not (tmp_path / ".venv").exists()


PYTHON_WITH_PIP = """#!/bin/sh
case "$*" in
    *--requirement*)
        for number in $(seq 45); do echo "Collecting package-$number==1.0 (from -r lock (line $number))"; done
        {then} ;;
esac
exit 0
"""


@pytest.mark.parametrize(
    ("then", "code", "out", "err"),
    [
        ("echo 'Installing collected packages: package-1'", 0, "all 45 packages are here", ""),
        (
            "echo 'ERROR: no room' >&2; exit 1",
            2,
            "40 of 45 packages fetched",
            "ERROR: no room\nraftmq: could not install",
        ),
    ],
)
def test_setup_script_reports_present_packages(
    tmp_path: Path, deploy: Path, then: str, code: int, out: str, err: str
) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON_WITH_PIP.replace("{then}", then))
    python.chmod(0o755)
    (tmp_path / "requirements.lock").write_text("".join(f"package-{number}==1.0 \\\n" for number in range(1, 46)))
    done = run_script(deploy / "setup-venv.sh", PATH=USUAL_PATH)
    assert done.returncode == code
    assert "raftmq: 20 of 45 packages fetched\nraftmq: 40 of 45 packages fetched\n" in done.stdout
    assert out in done.stdout
    assert done.stderr.startswith(err)


def test_missing_python_prints_one_line_naming_the_packages(tmp_path: Path, deploy: Path) -> None:
    for script in deploy.iterdir():
        script.write_text(script.read_text().replace("/usr/bin/python3.11", "/nowhere/python3.11"))
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("dirname", "echo", "cat"):
        found = shutil.which(name)
        assert found is not None
        (commands / name).symlink_to(found)
    done = run_script("/bin/sh", deploy / "setup-venv.sh", PATH=str(commands))
    assert done.returncode == 2
    assert done.stderr == "raftmq: no Python 3.11 or later found: apt install python3.11 python3.11-venv\n"


@pytest.mark.parametrize(
    ("says", "found"),
    [('openjdk version "11.0.2" 2019-01-15', "is Java 11"), ('java version "1.8.0_202"', "is Java 1"), ("", "no Java")],
)
def test_missing_java_17_prints_one_line_naming_the_package(tmp_path: Path, says: str, found: str) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    done = run_script(ROOT / "deploy" / "check-java.sh", JAVA_HOME=str(tmp_path), PATH=USUAL_PATH)
    assert done.returncode == 2
    assert done.stderr.startswith("raftmq: Spark needs Java 17 or later, ")
    assert found in done.stderr
    assert done.stderr.endswith(": apt install openjdk-17-jre-headless\n")


def test_java_17_is_enough(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    assert run_script(ROOT / "deploy" / "check-java.sh", PATH=f"{tmp_path}:{USUAL_PATH}").returncode == 0
