"""A deployment with the files of `deploy/make-credentials.sh`: all ports with TLS, every request with an account."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, MessageQueue, Producer, PullConsumer, RemotingSettings
from mq.client.errors import BrokerError
from mq.credentials import Credentials
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from tests.support.running_broker import running

SCRIPT = Path(__file__).parents[3] / "deploy" / "make-credentials.sh"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


async def test_servers_and_clients_work_with_made_credentials(tmp_path: Path) -> None:
    made = tmp_path / "credentials"
    subprocess.run([SCRIPT, made, "n0=127.0.0.1", "namesrv=127.0.0.1"], check=True, capture_output=True, timeout=60)  # noqa: ASYNC221
    tls = ssl.create_default_context(cafile=made / "ca.pem")
    operator, application = (
        RemotingSettings(tls=tls, credentials=Credentials.from_file(made / f"{name}.toml"))
        for name in ("operator", "application")
    )
    names = NamesrvSettings(
        listen_host="127.0.0.1",
        listen_port=0,
        data_dir=None,
        metrics_listen="off",
        acl_file=made / "accounts.yml",
        tls_mode="enforcing",
        tls_certificate=made / "namesrv.pem",
        tls_key=made / "namesrv.key",
    )
    keys = Credentials.from_file(made / "operator.toml")
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, names)
        namesrv = f"{host}:{port}"
        broker = running(
            tmp_path / "n0",
            keys=(keys.access_key, keys.secret_key),
            tls=tls,
            namesrv=namesrv,
            namesrv_credentials=made / "brokers.toml",
            acl_file=made / "accounts.yml",
            tls_mode="enforcing",
            tls_replication="enforcing",
            tls_certificate=made / "n0.pem",
            tls_key=made / "n0.key",
            tls_namesrv=True,
            tls_namesrv_ca=made / "ca.pem",
        )
        async with broker, Admin(namesrv, remoting=operator) as admin:
            await admin.create_topic("Orders", queues=1)
            async with Producer(namesrv, "P", remoting=application) as producer:
                await producer.send(Message("Orders", b"hello"))
            async with PullConsumer(namesrv, "G", consume_from="first", remoting=application) as consumer:
                await consumer.assign([MessageQueue("Orders", "broker-a", 0)])
                (message,) = await consumer.poll(timeout=5.0)
                assert message.body == b"hello"
            async with Admin(namesrv, remoting=application) as somebody:
                with pytest.raises(BrokerError, match="administrators"):
                    await somebody.delete_topic("Orders")
            await admin.delete_topic("Orders")
        nursery.cancel_scope.cancel()
