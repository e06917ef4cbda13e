"""The Python of tasks on a cluster: the packed code runs by itself, and a relative interpreter is found here, too."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from spark.tables.shipped_code import is_in_archive, pack, stand_in

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import spark.access, spark.filters, spark.tables.commits, mq.credentials, raftlog.segment.checksum
print({module.__file__.startswith(sys.argv[1]) for module in (spark, mq, raftlog)})
"""


def test_packed_code_imports_without_the_checkout(tmp_path: Path) -> None:
    packed = pack(tmp_path / "shipped")
    isolated = [sys.executable, "-I", "-S", "-c"]  # without this checkout, and without what is installed
    installed = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
    done = subprocess.run([*isolated, installed + PROGRAM, packed], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{True}\n", "")


def test_tasks_import_no_packages_of_the_driver() -> None:
    absent = ("anyio", "boto3", "cbor2", "cryptography", "rich", "trio", "yaml")
    modules = ("bulk_reader", "task_reader", "writer", "tables.json_syntax", "tables.reasons", "tables.arrow_rows")
    program = f"import sys; sys.modules.update(dict.fromkeys({absent}));" + "".join(
        f"import spark.{each};" for each in modules
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_relative_interpreter_is_expected_in_an_archive(tmp_path: Path) -> None:
    assert is_in_archive("./env/bin/python", tmp_path)
    assert not is_in_archive("python3", tmp_path)  # found by PATH
    assert not is_in_archive("/opt/env/bin/python", tmp_path)
    assert not is_in_archive("../env/bin/python", tmp_path)
    stand_in("./env/bin/python", tmp_path)
    assert not is_in_archive("./env/bin/python", tmp_path)


def test_stand_in_runs_the_interpreter_of_this_process(tmp_path: Path) -> None:
    stand_in("env/bin/python", tmp_path)
    program = ["env/bin/python", "-c", "import sys; print(sys.prefix, *sys.argv[1:])", "a b"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.prefix} a b\n"
