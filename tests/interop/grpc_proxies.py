"""The proxies to which gRPC clients connect: ours, and RocketMQ's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from mq.cli.dev_cluster import HOST, DevClusterFailed, Ports
from mq.client import Admin
from tests.interop.rocketmq_servers import CLUSTER, READY_SECONDS_MAX, RocketMQServer
from tests.interop.security import PROXY, Security

_SYNC_TOPIC = "DefaultHeartBeatSyncerTopic"
"""RocketMQ's proxy creates it, and ends if name servers do not know it at once."""

_MAIN = "org.apache.rocketmq.proxy.ProxyStartup"


@asynccontextmanager
async def raftmq_proxy(namesrv: str, directory: Path, security: Security) -> AsyncIterator[str]:
    """`raftmq proxy`, in front of the brokers that a name server knows; yields its address.

    Clients must sign their calls, or use TLS, as ``security`` says. Raises DevClusterFailed.
    """
    os.makedirs(directory)
    [port, *_] = Ports.free(1).all
    arguments = ["proxy", "--namesrv", namesrv, "--listen", f"{HOST}:{port}", "--set", "metrics_listen=off"]
    for name in ("tls_mode", "tls_certificate", "tls_key"):
        if name in security.settings:
            arguments += ["--set", f"{name}={security.settings[name]}"]
    environment = dict(os.environ)
    if security.administrator is not None:
        environment |= {"RAFTMQ_ACCESS_KEY": PROXY.access_key, "RAFTMQ_SECRET_KEY": PROXY.secret_key}
    log = directory / "output"
    with log.open("ab") as output:
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(
                    trio.run_process,
                    [sys.executable, "-m", "mq.cli", *arguments, "--until-stdin-closes"],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                    start_new_session=True,
                    env=environment,
                )
            )
            with trio.move_on_after(READY_SECONDS_MAX) as waiting:
                while '"listening"' not in log.read_text():
                    if (code := process.poll()) is not None:
                        raise DevClusterFailed(f"raftmq proxy ended with exit code {code}; see {log}")
                    await trio.sleep(0.1)
            if waiting.cancelled_caught:
                raise DevClusterFailed(f"raftmq proxy does not listen; see {log}")
            yield f"{HOST}:{port}"
            process.terminate()
            await process.wait()


@asynccontextmanager
async def rocketmq_proxy(namesrv: str, directory: Path, security: Security) -> AsyncIterator[str]:
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
    server = await RocketMQServer.start("the proxy", _MAIN, directory, ["-pc", str(path)], options=options)
    try:
        await server.wait_listening(port)
        yield f"{HOST}:{port}"
    finally:
        await server.stop()
