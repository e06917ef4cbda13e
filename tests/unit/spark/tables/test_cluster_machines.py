"""What a pipeline asks of a cluster's machines: formats, shipped Python, and a directory that is one everywhere."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark.tables.installed import PACKAGES, SparkMissing, packages_of, settings_of
from spark.tables.parquet_directory import DirectoryUnusable
from spark.tables.pipeline import Pipeline, parse_pipeline
from spark.tables.shared_location import ask_executors, check_shared, local_path
from spark.tables.shipped_code import is_in_archive, pack, stand_in


def pipeline(table: str, more: str = "") -> Pipeline:
    return parse_pipeline(f"namesrv: h:1\ntopic: T\ntable: {table}\n{more}\n", Path("/p.yaml"))


ICEBERG = "{format: iceberg, name: lake.db.t}"


def test_parquet_needs_no_package() -> None:
    assert packages_of(pipeline("{format: parquet, location: /t}"), "9.9.9") == ()


def test_formats_without_a_build_are_refused() -> None:
    with pytest.raises(
        SparkMissing, match=r"no tested build of iceberg is known for Spark 4\.3: install 'pyspark~=4\.1\.0'"
    ):
        packages_of(pipeline(ICEBERG), "4.3.0")
    assert packages_of(pipeline(ICEBERG), "4.1.4") == PACKAGES["iceberg", "4.1"]
    assert packages_of(pipeline(ICEBERG, "packages: [a:b:1]"), "4.3.0") == ("a:b:1",)
    assert packages_of(pipeline(ICEBERG, "spark: {spark.jars: /x.jar}"), "4.3.0") == ()


def test_settings_of_the_file_have_precedence() -> None:
    found = settings_of(pipeline(ICEBERG, "spark: {spark.sql.shuffle.partitions: 3}"))
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert "Iceberg" in found["spark.sql.extensions"]


def test_vacuum_of_delta_does_not_start_ten_thousand_tasks() -> None:
    found = settings_of(pipeline("{format: delta, location: /t}"))
    assert int(found["spark.sql.sources.parallelPartitionDiscovery.parallelism"]) <= 64


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


See = Callable[[int], str | None]


@pytest.mark.parametrize(
    ("location", "default", "path"),
    [
        ("/data/my t%20", "file", "/data/my t%20"),
        ("file:/data/my%20t", "hdfs", "/data/my t"),
        ("file:///data/t", "file", "/data/t"),
        ("/data/t", "hdfs", None),
        ("hdfs://h/data/t", "file", None),
        ("s3a://bucket/t", "file", None),
    ],
)
def test_only_paths_of_this_machine_are_checked(location: str, default: str, path: str | None) -> None:
    assert local_path(location, default) == path


def test_directory_that_all_machines_see_is_accepted(tmp_path: Path) -> None:
    ask_executors(tmp_path / "new" / "t", lambda see: map(see, range(2)))
    assert list((tmp_path / "new" / "t").iterdir()) == []


def test_machine_that_does_not_see_the_directory_is_reported(tmp_path: Path) -> None:
    def ask(see: See) -> Iterable[str | None]:
        yield see(0)
        (probe,) = tmp_path.iterdir()
        probe.rename(tmp_path.parent / probe.name)  # as on a machine with a directory of its own
        yield see(1)

    with pytest.raises(DirectoryUnusable, match=r"the executor on \S+ does not see what the driver writes into"):
        ask_executors(tmp_path, ask)


def test_uncreatable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryUnusable, match=r"file/t: Not a directory"):
        ask_executors(tmp_path / "file" / "t", lambda _: [])


def test_shared_location_is_not_checked_for_local_executors() -> None:
    def location() -> str:
        raise AssertionError("nobody has to know")

    check_shared(SimpleNamespace(master="local[2]"), location)


def test_unknown_location_is_not_checked() -> None:
    java = SimpleNamespace(hadoopConfiguration=lambda: {"fs.defaultFS": "file:///"})
    check_shared(SimpleNamespace(master="spark://h:7077", _jsc=java), lambda: "")


def test_each_slot_of_a_cluster_is_asked_twice(tmp_path: Path) -> None:
    asked: list[Any] = []

    class Context:
        master = "spark://h:7077"
        defaultParallelism = 5
        _jsc = SimpleNamespace(hadoopConfiguration=lambda: {"fs.defaultFS": "file:///"})

        def parallelize(self, numbers: range, tasks: int) -> Context:
            asked.append((numbers, tasks))
            return self

        def map(self, see: See) -> Context:
            asked.append(see(0))
            return self

        def collect(self) -> list[None]:
            return []

    check_shared(Context(), lambda: str(tmp_path))
    assert asked == [(range(10), 10), None]
