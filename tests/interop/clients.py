"""The clients under test: how each one's program is built and started.

A client is built from its registry with pinned versions into a directory below ``CACHE``, which git ignores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.interop.security import TLS, Security

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".interop"

BUILD_SECONDS_MAX = 1800.0

REMOTING, GRPC = "remoting", "grpc"
RAFTMQ, ROCKETMQ = "raftmq", "rocketmq"


class BuildFailed(Exception):
    """The program of a client could not be built; the message holds the last lines of what the tool said."""


class Client(Protocol):
    """One client library in one version, with our program for it."""

    @property
    def name(self) -> str:
        """As on the command line and in the report."""

    @property
    def skips(self) -> Mapping[str, str]:
        """Scenarios that this client cannot play, and why; "NAME SECURITY" if with one kind of security only."""

    @property
    def unable(self) -> Mapping[str, str]:
        """The kinds of security that this client does not have, and in which words to say so."""

    @property
    def stays_away_seconds(self) -> float:
        """How long it does not try an address again that did not answer."""

    @property
    def protocol(self) -> str:
        """REMOTING, or GRPC for clients that need RocketMQ's proxy; it plays the scenarios of this protocol."""

    @property
    def proxy(self) -> str | None:
        """Whose proxy it connects to, RAFTMQ or ROCKETMQ; None for clients of brokers."""

    @property
    def servers(self) -> str:
        """Whose name server and brokers it talks to: RAFTMQ, or ROCKETMQ to compare with."""

    def missing(self) -> str | None:
        """What this machine lacks to build and run it, or None."""

    def is_built(self) -> bool:
        """Whether there is something to run, be it of today's sources or older."""

    def build(self, *, offline: bool = False) -> None:
        """Fetch and compile, with what was fetched before only if ``offline``. Raises BuildFailed."""

    def command(self, directory: Path, security: Security) -> list[str]:
        """Program and first arguments; its own logs go into ``directory``, which exists.

        The program is run with ``security.program`` in its environment.
        """


def tools_missing(*names: str) -> str | None:
    """Which of these programs are not on PATH, in words, or None."""
    absent = [name for name in names if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else None


QUICK_MAVEN = {"MAVEN_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""It runs for seconds: Java's second compiler costs more than it gives."""


def run_tool(arguments: Sequence[str], directory: Path) -> None:
    """Run a build tool in ``directory``. Raises BuildFailed."""
    try:
        done = subprocess.run(
            arguments,
            cwd=directory,
            env={**QUICK_MAVEN, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"{arguments[0]} took longer than {BUILD_SECONDS_MAX:g} s") from error
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise BuildFailed(f"{' '.join(arguments)} ended with {done.returncode}:\n{last}")


@dataclass(frozen=True)
class JavaClient:
    """org.apache.rocketmq:rocketmq-client and rocketmq-tools of the version that the profile in java/pom.xml pins."""

    name: str
    skips: Mapping[str, str] = field(default_factory=dict)
    unable: Mapping[str, str] = field(default_factory=dict)
    stays_away_seconds: float = 0
    protocol: str = REMOTING
    servers: str = RAFTMQ
    proxy: str | None = None

    @property
    def _output(self) -> Path:
        return CACHE / self.name

    def missing(self) -> str | None:
        return tools_missing("java", "mvn")

    def is_built(self) -> bool:
        return (self._output / "classes" / "interop" / "Main.class").exists()

    def build(self, *, offline: bool = False) -> None:
        goals = ["compile", "dependency:copy-dependencies"]
        maven = ["mvn", "-B", "-q", "-P", self.name, f"-Dinterop.output={self._output}"]
        try:
            run_tool([*maven, "-o", *goals], HERE / "java")  # all that it needs may be here already
        except BuildFailed:
            if offline:
                raise
            run_tool([*maven, *goals], HERE / "java")

    def command(self, directory: Path, security: Security) -> list[str]:
        # The tools of 4.9 read this file whatever they log to.
        (directory / "conf").mkdir(exist_ok=True)
        (directory / "conf" / "logback_tools.xml").write_text("<configuration/>\n")
        security.write_tools_file(directory)
        options = {
            "user.home": str(directory),
            "user.timezone": "UTC",
            "rocketmq.home.dir": str(directory),
            "rocketmq.client.logRoot": str(directory),
            "rocketmq.client.localOffsetStoreDir": str(directory / "offsets"),
            **security.java_tls_options,
        }
        return [
            "java",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{self._output / 'classes'}:{self._output / 'lib'}/*",
            *(f"-D{name}={value}" for name, value in options.items()),
            "interop.Main",
        ]


@dataclass(frozen=True)
class GoClient:
    """github.com/apache/rocketmq-client-go/v2 of the version that go/go.mod pins."""

    name: str = "go"
    unable: Mapping[str, str] = field(default_factory=lambda: {TLS: "this client has no TLS"})
    stays_away_seconds: float = 0
    protocol: str = REMOTING
    servers: str = RAFTMQ
    proxy: str | None = None

    @property
    def skips(self) -> Mapping[str, str]:
        return {
            "lite-pull": "this client does not support it",
            "lookup": "this client does not support it",
            **dict.fromkeys(("mqadmin", "users"), "a tool of the Java client"),
            "recreated": "played by the Java clients only",
            "admin acl": "this client signs a single request of its admin client",
            "requests-killed": "this client crashes when a request cannot be sent",
            **dict.fromkeys(("timers", "timers-killed", "recall"), "this client supports delay levels only"),
            **dict.fromkeys(("pop", "pop-killed"), "this client does not support it"),
        }

    @property
    def _program(self) -> Path:
        return CACHE / self.name / "interop"

    def missing(self) -> str | None:
        return tools_missing("go")

    def is_built(self) -> bool:
        return self._program.exists()

    def build(self, *, offline: bool = False) -> None:
        environment = {"GOFLAGS": "-mod=readonly"} | ({"GOPROXY": "off"} if offline else {})
        run_tool(
            ["env", *(f"{k}={v}" for k, v in environment.items()), "go", "build", "-o", str(self._program), "."],
            HERE / "go",
        )

    def command(self, directory: Path, security: Security) -> list[str]:
        return ["env", f"HOME={directory}", str(self._program)]


@dataclass(frozen=True)
class NodeClient:
    """ali-ons of the version that node/package-lock.json pins."""

    name: str = "node"
    unable: Mapping[str, str] = field(default_factory=lambda: {TLS: "this client has no TLS"})
    stays_away_seconds: float = 0
    protocol: str = REMOTING
    servers: str = RAFTMQ
    proxy: str | None = None

    @property
    def skips(self) -> Mapping[str, str]:
        ordered = "this client does not consume in order"
        return {
            "orderly": ordered,
            "retry-orderly": ordered,
            "leader-killed-orderly": ordered,
            "transfer-orderly": ordered,
            "pull": "this client has no pull consumer",
            "lite-pull": "this client does not support it",
            "reset": "this client ignores requests from brokers",
            "lookup": "this client does not support it",
            "admin": "this client does not support it",
            **dict.fromkeys(("mqadmin", "users"), "a tool of the Java client"),
            "recreated": "played by the Java clients only",
            **dict.fromkeys(("timers", "timers-killed", "recall"), "this client supports delay levels only"),
            **dict.fromkeys(("transactions", "transactions-killed"), "this client does not support it"),
            **dict.fromkeys(("pop", "pop-killed"), "this client does not support it"),
            **dict.fromkeys(("request-reply", "requests-killed"), "this client does not support it"),
            **dict.fromkeys(("trace", "trace-killed"), "this client writes none"),
        }

    @property
    def _output(self) -> Path:
        return CACHE / self.name

    def missing(self) -> str | None:
        return tools_missing("node", "npm")

    def is_built(self) -> bool:
        return (self._output / "node_modules" / "ali-ons" / "package.json").exists()

    def build(self, *, offline: bool = False) -> None:
        self._output.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / "node" / name, self._output)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--offline" if offline else "--prefer-offline"]
        run_tool(["npm", "ci", *options], self._output)

    def command(self, directory: Path, security: Security) -> list[str]:
        return [
            "env",
            f"HOME={directory}",
            f"NODE_PATH={self._output / 'node_modules'}",
            "node",
            str(HERE / "node" / "main.js"),
        ]


@dataclass(frozen=True)
class RustClient:
    """rocketmq-client-rust of the version that rust/Cargo.toml pins. Compiling it takes minutes."""

    name: str = "rust"
    unable: Mapping[str, str] = field(default_factory=dict)
    stays_away_seconds: float = 30
    protocol: str = REMOTING
    servers: str = RAFTMQ
    proxy: str | None = None

    @property
    def skips(self) -> Mapping[str, str]:
        return {
            **dict.fromkeys(("mqadmin", "users"), "a tool of the Java client"),
            "recreated": "played by the Java clients only",
            "pull tls": "the pull consumer of this client switches TLS off",
        }

    @property
    def _output(self) -> Path:
        return CACHE / self.name

    def missing(self) -> str | None:
        return tools_missing("cargo")

    def is_built(self) -> bool:
        return (self._output / "debug" / "interop").exists()

    def build(self, *, offline: bool = False) -> None:
        options = ["--locked", "--quiet", "--target-dir", str(self._output), *(["--offline"] if offline else [])]
        run_tool(["cargo", "build", *options], HERE / "rust")

    def command(self, directory: Path, security: Security) -> list[str]:
        # What traces are sent with takes no authority, but those of the system.
        trusted = [] if security.authority is None else [f"SSL_CERT_FILE={security.authority}"]
        return ["env", f"HOME={directory}", "RUST_LOG=warn", *trusted, str(self._output / "debug" / "interop")]


# -- RocketMQ's own servers, which gRPC clients need -------------------------------------------------------------------

SERVERS_VERSION = "5.3.3"
WITH_PROXY = (SERVERS_VERSION, "5.5.0")


def servers_lib(version: str = SERVERS_VERSION) -> Path:
    """Where the jars of RocketMQ's servers of a version are, once they are fetched."""
    return CACHE / f"rocketmq-servers-{version}" / "lib"


def servers_built(version: str = SERVERS_VERSION) -> bool:
    """Whether the jars of RocketMQ's servers have been fetched."""
    return (servers_lib(version) / f"rocketmq-broker-{version}.jar").exists()


def build_servers(version: str = SERVERS_VERSION, *, offline: bool = False) -> None:
    """Fetch the jars, with what was fetched before only if ``offline``. Raises BuildFailed."""
    profiles = ("proxy",) if version in WITH_PROXY else ()
    fetch_jars("servers.xml", {"rocketmq.version": version}, servers_lib(version).parent, profiles, offline=offline)


def fetch_jars(
    project: str, values: Mapping[str, str], output: Path, profiles: Sequence[str] = (), *, offline: bool = False
) -> None:
    """Put the jars of a Maven project of tests/interop/java into ``output``/lib. Raises BuildFailed."""
    maven = ["mvn", "-B", "-q", "-f", str(HERE / "java" / project), f"-Dinterop.output={output}"]
    maven += [f"-D{name}={value}" for name, value in values.items()]
    maven += [part for profile in profiles for part in ("-P", profile)]
    try:
        run_tool([*maven, "-o", "dependency:copy-dependencies"], HERE)
    except BuildFailed:
        if offline:
            raise
        run_tool([*maven, "dependency:copy-dependencies"], HERE)
