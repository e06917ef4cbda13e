"""The proxies to which gRPC clients connect: ours, and RocketMQ's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from mq.cli.dev_cluster import HOST, DevClusterFailed, Ports
from mq.client import Admin
from tests.interop.clients import SERVERS_VERSION
from tests.interop.rocketmq_servers import CLUSTER, READY_SECONDS_MAX, RocketMQServer
from tests.interop.security import PROXY, Security

_SYNC_TOPIC = "DefaultHeartBeatSyncerTopic"
"""RocketMQ's proxy creates it, and ends if name servers do not know it at once."""

_MAIN = "org.apache.rocketmq.proxy.ProxyStartup"


@dataclass(slots=True)
class RaftmqProxy:
    """`raftmq proxy` as a child process that can be stopped and started again at the same address."""

    address: str
    log: Path
    _command: list[str]
    _environment: Mapping[str, str]
    _process: trio.Process | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, namesrv: str, directory: Path, security: Security) -> AsyncIterator[RaftmqProxy]:
        """In front of the brokers that a name server knows. Raises DevClusterFailed.

        Clients must sign their calls, or use TLS, as ``security`` says.
        """
        os.makedirs(directory)
        [port, *_] = Ports.free(1).all
        address = f"{HOST}:{port}"
        command = [sys.executable, "-m", "mq.cli", "proxy", "--namesrv", namesrv, "--listen", address]
        command += ["--set", "metrics_listen=off", "--until-stdin-closes"]
        for name in ("tls_mode", "tls_certificate", "tls_key"):
            if name in security.settings:
                command += ["--set", f"{name}={security.settings[name]}"]
        environment = dict(os.environ)
        if security.administrator is not None:
            environment |= {"RAFTMQ_ACCESS_KEY": PROXY.access_key, "RAFTMQ_SECRET_KEY": PROXY.secret_key}
        proxy = cls(address, directory / "output", command, environment)
        await proxy.start()
        try:
            yield proxy
        finally:
            with trio.CancelScope(shield=True):
                await proxy.stop()

    async def start(self) -> None:
        """Until it listens. Raises DevClusterFailed."""
        began = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self._process = await trio.lowlevel.open_process(
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._environment,
            )
        with trio.move_on_after(READY_SECONDS_MAX):
            while b'"listening"' not in self.log.read_bytes()[began:]:
                if (code := self._process.poll()) is not None:
                    raise DevClusterFailed(f"raftmq proxy ended with exit code {code}; see {self.log}")
                await trio.sleep(0.05)
            return
        raise DevClusterFailed(f"raftmq proxy does not listen; see {self.log}")

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal, and wait for its end. No effect the second time."""
        if self._process is not None:
            self._process.send_signal(number)
            await self._process.wait()
            assert self._process.stdin is not None, "started with a pipe"
            await self._process.stdin.aclose()
            self._process = None


@asynccontextmanager
async def rocketmq_proxy(
    namesrv: str, directory: Path, security: Security, version: str = SERVERS_VERSION
) -> AsyncIterator[str]:
    """RocketMQ's proxy in cluster mode, in front of whatever brokers a name server knows; yields its address.

    It signs requests, or uses TLS, as ``security`` says. Raises DevClusterFailed, and ClientError if the servers do not
    answer.
    """
    async with Admin(namesrv) as admin:
        await admin.create_topic(_SYNC_TOPIC, 1)
    (directory / "conf").mkdir(parents=True)
    port, remoting_port, _ = Ports.free(1).all
    settings = {
        "rocketMQClusterName": CLUSTER,
        "namesrvAddr": namesrv,
        "grpcServerPort": port,
        "remotingListenPort": remoting_port,
        "localServeAddr": HOST,
        "enableAclRpcHookForClusterMode": security.administrator is not None,
    }
    security.write_tools_file(directory)
    path = directory / "conf" / "rmq-proxy.json"
    path.write_text(json.dumps(settings) + "\n")
    options = security.java_tls_options
    server = await RocketMQServer.start("the proxy", _MAIN, directory, ["-pc", str(path)], version, options=options)
    try:
        await server.wait_listening(port)
        yield f"{HOST}:{port}"
    finally:
        await server.stop()
