"""The gRPC clients under test, which connect to a proxy: ours, or that of RocketMQ."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.interop.clients import (
    CACHE,
    GRPC,
    HERE,
    RAFTMQ,
    ROCKETMQ,
    build_servers,
    run_tool,
    servers_built,
    tools_missing,
)
from tests.interop.security import ACL, TLS, Security

PROGRAMS = HERE / "grpc"

_JAVA_VERSION = "5.1.0"
DISTURBED = ("grpc-leader-killed", "grpc-proxy-stopped", "grpc-proxy-killed")
"""Scenarios that kill a leader, or stop a proxy."""

_NO_RECALL = {"grpc-recall": "this client does not support it"}


def _tls(security: Security) -> list[str]:
    """Variables for programs that take the authority from where gRPC's own library looks for it."""
    if security.authority is None:
        return []
    return ["INTEROP_GRPC_TLS=on", f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={security.authority}"]


@dataclass(frozen=True)
class _ClientOfOurProxy:
    """What clients that connect to `raftmq proxy` have in common."""

    name: str
    stays_away_seconds: float = 0
    protocol: str = GRPC
    servers: str = RAFTMQ
    proxy: str | None = RAFTMQ

    @property
    def unable(self) -> Mapping[str, str]:
        return {}

    @property
    def skips(self) -> Mapping[str, str]:
        return {}

    @property
    def _output(self) -> Path:
        return CACHE / self.name


@dataclass(frozen=True)
class GrpcJavaClient(_ClientOfOurProxy):
    """org.apache.rocketmq:rocketmq-client-java of the version that java/grpc.xml pins."""

    name: str = "java-grpc"

    def missing(self) -> str | None:
        return tools_missing("java", "mvn")

    def is_built(self) -> bool:
        return (self._output / "classes" / "interop" / "GrpcMain.class").exists()

    def build(self, *, offline: bool = False) -> None:
        goals = ["compile", "dependency:copy-dependencies"]
        maven = ["mvn", "-B", "-q", "-f", "grpc.xml", f"-Dinterop.output={self._output}"]
        run_tool([*maven, *(["-o"] if offline else []), *goals], HERE / "java")

    def command(self, directory: Path, security: Security) -> list[str]:
        options = {
            "user.home": str(directory),
            "rocketmq.log.root": str(directory),
            "interop.version": _JAVA_VERSION,
        }
        return [
            "env",
            *_tls(security),
            "java",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{self._output / 'classes'}:{self._output / 'lib'}/*",
            *(f"-D{name}={value}" for name, value in options.items()),
            "interop.GrpcMain",
        ]


@dataclass(frozen=True)
class GrpcGoClient(_ClientOfOurProxy):
    """github.com/apache/rocketmq-clients/golang/v5 of the version that grpc/go/go.mod pins."""

    name: str = "go-grpc"

    @property
    def skips(self) -> Mapping[str, str]:
        return _NO_RECALL

    @property
    def _program(self) -> Path:
        return CACHE / self.name / "interop"

    def missing(self) -> str | None:
        return tools_missing("go")

    def is_built(self) -> bool:
        return self._program.exists()

    def build(self, *, offline: bool = False) -> None:
        environment = ["GOFLAGS=-mod=readonly", *(["GOPROXY=off"] if offline else [])]
        run_tool(["env", *environment, "go", "build", "-o", str(self._program), "."], PROGRAMS / "go")

    def command(self, directory: Path, security: Security) -> list[str]:
        logs = [f"HOME={directory}", f"rocketmq.client.logRoot={directory}"]
        tls = [f"rocketmq.client.enableSsl={'false' if security.authority is None else 'true'}"]
        return ["env", *logs, *tls, str(self._program)]


@dataclass(frozen=True)
class GrpcNodeClient(_ClientOfOurProxy):
    """rocketmq-client-nodejs of the version that grpc/node/package-lock.json pins."""

    name: str = "node-grpc"

    def missing(self) -> str | None:
        return tools_missing("node", "npm")

    def is_built(self) -> bool:
        return (self._output / "node_modules" / "rocketmq-client-nodejs" / "package.json").exists()

    def build(self, *, offline: bool = False) -> None:
        self._output.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(PROGRAMS / "node" / name, self._output)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--offline" if offline else "--prefer-offline"]
        run_tool(["npm", "ci", *options], self._output)

    def command(self, directory: Path, security: Security) -> list[str]:
        return [
            "env",
            f"HOME={directory}",
            f"NODE_PATH={self._output / 'node_modules'}",
            *_tls(security),
            "node",
            str(PROGRAMS / "node" / "main.js"),
        ]


@dataclass(frozen=True)
class GrpcRustClient(_ClientOfOurProxy):
    """The crate rocketmq of the version that grpc/rust/Cargo.toml pins. Compiling it takes minutes."""

    name: str = "rust-grpc"

    @property
    def skips(self) -> Mapping[str, str]:
        return {
            **_NO_RECALL,
            "grpc-push": "this client has no push consumer",
            "grpc-simple": "this client cannot change the invisible time of a message",
        }

    def missing(self) -> str | None:
        return tools_missing("cargo")

    def is_built(self) -> bool:
        return (self._output / "debug" / "interop-grpc").exists()

    def build(self, *, offline: bool = False) -> None:
        options = ["--locked", "--quiet", "--target-dir", str(self._output), *(["--offline"] if offline else [])]
        run_tool(["cargo", "build", *options], PROGRAMS / "rust")

    def command(self, directory: Path, security: Security) -> list[str]:
        # This client trusts the authorities of the system.
        trusted = [] if security.authority is None else [f"SSL_CERT_FILE={security.authority}"]
        return ["env", f"HOME={directory}", *_tls(security), *trusted, str(self._output / "debug" / "interop-grpc")]


_ROCKETMQ_UNSECURED = "RocketMQ's servers are only here to compare with, and not set up for it"


@dataclass(frozen=True)
class PythonClient:
    """rocketmq-python-client of the version that grpc/requirements.txt pins, in an environment of its own."""

    name: str
    servers: str
    proxy: str | None = ROCKETMQ
    """Whose proxy it connects to."""
    protocol: str = GRPC
    stays_away_seconds: float = 0

    @property
    def unable(self) -> Mapping[str, str]:
        return dict.fromkeys((ACL, TLS), _ROCKETMQ_UNSECURED) if self.servers == ROCKETMQ else {}

    @property
    def skips(self) -> Mapping[str, str]:
        if self.proxy == RAFTMQ:
            return {}
        return dict.fromkeys(DISTURBED, "played with `raftmq proxy` only")

    @property
    def _output(self) -> Path:
        return CACHE / "python"

    @property
    def _program(self) -> Path:
        return self._output / "bin" / "python"

    def missing(self) -> str | None:
        return tools_missing("java", "mvn") if self.proxy == ROCKETMQ else None

    def is_built(self) -> bool:
        has_proxy = self.proxy == RAFTMQ or servers_built()
        return any(self._output.glob("lib/*/site-packages/rocketmq_python_client-*")) and has_proxy

    def build(self, *, offline: bool = False) -> None:
        if self.proxy == ROCKETMQ:
            build_servers(offline=offline)
        if not self._program.exists():
            run_tool([sys.executable, "-m", "venv", str(self._output)], HERE)
        install = [str(self._program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if not (offline and self.is_built()):
            run_tool([*install, "-r", str(HERE / "grpc" / "requirements.txt")], HERE)

    def command(self, directory: Path, security: Security) -> list[str]:
        # The client writes its log below HOME.
        environment = [f"HOME={directory}"]
        if self.proxy == RAFTMQ and security.authority is not None:
            environment += ["INTEROP_GRPC_TLS=on", f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={security.authority}"]
        return ["env", *environment, str(self._program), str(HERE / "grpc" / "main.py")]
