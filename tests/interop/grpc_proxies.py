"""The proxies to which gRPC clients connect: ours, and RocketMQ's."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mq.client import Admin
from mq.local_cluster import HOST, Ports, Processes
from tests.interop.clients import SERVERS_VERSION
from tests.interop.rocketmq_servers import CLUSTER, READY_SECONDS_MAX, start_java
from tests.interop.security import PROXY, Security

_SYNC_TOPIC = "DefaultHeartBeatSyncerTopic"
"""RocketMQ's proxy creates it, and ends if name servers do not know it at once."""

_PROXY = "proxy"
_LISTENING = re.compile('"listening"')
_MAIN = "org.apache.rocketmq.proxy.ProxyStartup"


@dataclass(slots=True)
class RaftmqProxy:
    """`raftmq proxy` as a child process that can be stopped and started again at the same address."""

    address: str
    _command: list[str]
    _environment: Mapping[str, str]
    _processes: Processes

    @classmethod
    @asynccontextmanager
    async def open(cls, namesrv: str, directory: Path, security: Security) -> AsyncIterator[RaftmqProxy]:
        """In front of the brokers that a name server knows. Raises ServersFailed.

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
        environment = dict[str, str]()
        if security.administrator is not None:
            environment |= {"RAFTMQ_ACCESS_KEY": PROXY.access_key, "RAFTMQ_SECRET_KEY": PROXY.secret_key}
        proxy = cls(address, command, environment, Processes(directory))
        await proxy.start()
        try:
            yield proxy
        finally:
            await proxy._processes.stop_all()

    async def start(self) -> None:
        """Until it listens. Raises ServersFailed."""
        began = self._processes.log_bytes(_PROXY)
        self._processes.start(_PROXY, self._command, self._environment, input_pipe=True)
        await self._processes.wait_said(_PROXY, _LISTENING, began, READY_SECONDS_MAX)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal, and wait for its end. No effect the second time."""
        await self._processes.end(_PROXY, number)


@asynccontextmanager
async def rocketmq_proxy(
    namesrv: str, directory: Path, security: Security, version: str = SERVERS_VERSION
) -> AsyncIterator[str]:
    """RocketMQ's proxy in cluster mode, in front of whatever brokers a name server knows; yields its address.

    It signs requests, or uses TLS, as ``security`` says. Raises ServersFailed, and ClientError if the servers do not
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
    processes = Processes(directory)
    try:
        start_java(processes, _PROXY, _MAIN, directory, ["-pc", str(path)], version, options=options)
        await processes.wait_listening(_PROXY, port, READY_SECONDS_MAX)
        yield f"{HOST}:{port}"
    finally:
        await processes.stop_all()
