"""Hadoop YARN on this machine: a resource manager and a node manager, each a process. Maven has their jars."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark

from mq.local_cluster import Processes, open_processes
from tests.free_ports import free_ports
from tests.interop.clients import CACHE, fetch_jars, tools_missing
from tests.spark.table_commands import SECONDS_MAX, wait_until

JARS: Final = Path(pyspark.__file__).parent / "jars"
MASTER: Final = "ExecutorLauncher"
EXECUTOR: Final = "YarnCoarseGrainedExecutorBackend"
"""Programs of containers, which with the driver on another machine are these two."""
_SERVERS: Final = "org.apache.hadoop.yarn.server"
_JVM: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOGGING: Final = """
rootLogger.level = info
rootLogger.appenderRef.c.ref = c
appender.c.type = Console
appender.c.name = c
appender.c.layout.type = PatternLayout
appender.c.layout.pattern = %d %p %c{1}: %m%n
"""


class Yarn:
    """A cluster of one machine, in one directory."""

    def __init__(self, servers: Processes, directory: Path) -> None:
        self._servers = servers
        self.directory = directory

    @property
    def settings(self) -> Path:
        """What HADOOP_CONF_DIR names."""
        return self.directory / "settings"

    def containers(self, program: str) -> list[int]:
        """The process ids of the containers that run `MASTER` or `EXECUTOR`."""
        return [
            int(process.name)
            for process in Path("/proc").glob("[0-9]*")
            if program in (said := _command_of(process))
            and str(self.directory) in said
            and "java" in said.split("\0")[0]
        ]

    def kill(self, program: str) -> int:
        """Kill the only container that runs the program, once there is one; returns its process id."""
        wait_until(lambda: self.containers(program), SECONDS_MAX, f"no container runs {program}")
        (found,) = self.containers(program)
        os.kill(found, signal.SIGKILL)
        return found

    def files(self, name: str) -> list[Path]:
        """The files of containers that have this name."""
        return list((self.directory / "local").rglob(name))

    def came_to(self, what: str, state: str) -> int:
        """How many applications (``App``) or their attempts (``AppAttempt``) came into a state such as FAILED."""
        said = f"RM{what}Impl: "
        lines = self._servers.log_path("resourcemanager").read_text().splitlines()
        return sum(said in line and f" to {state} on event" in line for line in lines)

    def close(self) -> None:
        """Kill the containers, which have sessions of their own."""
        for program in (MASTER, EXECUTOR):
            for each in self.containers(program):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)


def prepare() -> Path:
    """Download what PySpark does not have, once; returns where it is. Raises BuildFailed."""
    (found,) = JARS.glob("hadoop-client-api-*.jar")
    version = found.stem.removeprefix("hadoop-client-api-")
    jars = CACHE / f"yarn-{version}" / "lib"
    if not (jars / f"hadoop-client-minicluster-{version}.jar").exists():
        fetch_jars("yarn.xml", {"hadoop.version": version}, jars.parent)
    return jars


def missing() -> str | None:
    """What this machine lacks to run YARN, or None."""
    return tools_missing("java", "mvn", "setsid")


@contextmanager
def open_yarn(jars: Path, directory: Path) -> Iterator[Yarn]:
    """A resource manager and a node manager, until the block ends."""
    settings = directory / "settings"
    settings.mkdir(parents=True)
    ports = [f"127.0.0.1:{port}" for port in free_ports(8)]
    _write(settings / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": directory / "tmp"})
    _write(settings / "yarn-site.xml", _yarn_settings(ports, directory))
    (settings / "log4j2.properties").write_text(_LOGGING)
    java = shutil.which("java")
    assert java is not None
    environment = {"JAVA_HOME": str(Path(java).resolve().parents[1]), "PYTHONPATH": "", "JDK_JAVA_OPTIONS": ""}
    command = ["java", *_JVM, "-cp", f"{settings}:{jars}/*:{JARS}/*"]
    with open_processes(directory) as servers:
        opened = Yarn(servers, directory)
        try:
            for program in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
                name = program.partition(".")[0]
                servers.start(name, [*command, f"{_SERVERS}.{program}"], environment)
                said = (
                    "Transitioned to active state" if name == "resourcemanager" else "Registered with ResourceManager"
                )
                _wait_said(servers, name, said)
            yield opened
        finally:
            opened.close()


def _wait_said(servers: Processes, name: str, text: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while text not in servers.log_path(name).read_text():
        servers.check()
        assert time.monotonic() < deadline, servers.last_words(name)
        time.sleep(0.1)


def _yarn_settings(ports: list[str], directory: Path) -> dict[str, object]:
    manager, node = "yarn.resourcemanager", "yarn.nodemanager"
    addresses = (
        *(
            f"{manager}.{each}"
            for each in ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        ),
        *(f"{each}.webapp.address" for each in (manager, node)),
        *(f"{node}.{each}" for each in ("address", "localizer.address")),
    )
    return {
        **dict(zip(addresses, ports, strict=True)),
        f"{manager}.hostname": "127.0.0.1",
        f"{manager}.scheduler.class": f"{_SERVERS}.resourcemanager.scheduler.fifo.FifoScheduler",
        f"{manager}.am.max-attempts": 2,
        f"{node}.hostname": "127.0.0.1",
        f"{node}.local-dirs": directory / "local",
        f"{node}.log-dirs": directory / "logs",
        f"{node}.resource.memory-mb": 4096,
        f"{node}.vmem-check-enabled": "false",
        f"{node}.disk-health-checker.enable": "false",  # a disk that is nearly full runs tests, too
        f"{node}.delete.debug-delay-sec": 3600,  # tests look at the files of containers that have ended
        "yarn.scheduler.minimum-allocation-mb": 128,
    }


def _write(path: Path, values: Mapping[str, object]) -> None:
    settings = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items()
    )
    path.write_text(f"<configuration>{settings}</configuration>\n")


def _command_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
