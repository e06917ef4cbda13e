"""`raftmq user` and `raftmq acl` as processes, against a broker with accounts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.codes import ResponseCode
from tests.support.guarded import ADMIN, USER, guarded
from tests.support.running_broker import SECONDS_MAX, send_ext

pytestmark = pytest.mark.process

KEYS = {"RAFTMQ_ACCESS_KEY": ADMIN[0], "RAFTMQ_SECRET_KEY": ADMIN[1]}


class Commands:
    """Runs commands as the administrator."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv

    async def run(self, *arguments: str, given: str = "", code: int = 0, **environment: str) -> str:
        command = [sys.executable, "-m", "mq.cli", *arguments, "--namesrv", self._namesrv]
        with trio.fail_after(SECONDS_MAX):
            done = await trio.run_process(
                command,
                stdin=given.encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=os.environ | KEYS | environment,
            )
        assert done.returncode == code, (arguments, done.stderr.decode())
        return (done.stdout if code == 0 else done.stderr).decode()

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.run(*arguments, "--json"))


@pytest.mark.slow
async def test_user_commands_create_users_and_grant_permissions(tmp_path: Path) -> None:
    names = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None, metrics_listen="off")
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, names)
        commands = Commands(f"{host}:{port}")
        async with guarded(tmp_path, namesrv=f"{host}:{port}") as (broker, _):
            said = await commands.run("user", "create", "orders", "--password-file", "-", given=f"{USER[1]}\n")
            assert said == "created user orders (normal)\n"
            assert "no password" in await commands.run("user", "create", "another", code=2)
            said = await commands.run("acl", "put", "orders", "Topic:T*", "Group:G", "--action", "Pub")
            assert said == "allow: orders Pub Topic:T*, Group:G\n"
            assert await commands.json("user", "list") == [
                {"user": "orders", "broker": "broker-a", "super": False, "enabled": True}
            ]
            policy = {"user": "orders", "broker": "broker-a", "resource": "Group:G", "actions": ["Pub"]}
            policy |= {"sources": [], "decision": "allow", "type": "custom"}
            assert await commands.json("acl", "list") == [policy, policy | {"resource": "Topic:T*"}]
            shown = (await commands.run("acl", "list")).splitlines()
            assert [line.split()[0] for line in shown] == ["user", "orders", "orders"]
            client = await broker.connect()
            client.keys = USER
            assert (await client.request(310, send_ext("T"), b"x")).code == ResponseCode.SUCCESS
            await commands.run("user", "update", "orders", "--disable")
            assert (await client.request(310, send_ext("T"), b"x")).code == ResponseCode.NO_PERMISSION
            await commands.run("acl", "delete", "orders", "Topic:T*")
            assert await commands.json("acl", "list") == [policy]
            await commands.run("user", "delete", "orders")
            assert "there is no user" in await commands.run("user", "delete", "orders", code=1)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_quotas_of_users_are_set_listed_and_removed(tmp_path: Path) -> None:
    names = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None, metrics_listen="off")
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, names)
        commands = Commands(f"{host}:{port}")
        async with guarded(tmp_path, level=8, namesrv=f"{host}:{port}"):
            said = await commands.run("user", "set-quota", "orders", "--produce-messages", "5", "--connections", "9")
            assert said == "quota of orders: produce 5 messages/s; connections 9\n"
            said = await commands.run("user", "set-quota", "orders", "--produce-messages", "-1")
            assert said == "quota of orders: connections 9\n"
            said = await commands.run("user", "set-quota", "*", "--consume-bytes", "1000")
            assert said == "quota of each user without its own: consume 1000 bytes/s\n"
            assert "nothing to change: pass --produce-messages" in await commands.run(
                "user", "set-quota", "orders", code=2
            )
            assert "a quota is 1 or more" in await commands.run(
                "user", "set-quota", "orders", "--connections", "0", code=2
            )
            listed = await commands.json("user", "quotas")
            assert [(each["user"], each["connections"], each["consume_bytes"]) for each in listed["quotas"]] == [
                ("*", None, 1000),
                ("orders", 9, None),
            ]
            assert listed["throttled"] == []
            shown = await commands.run("user", "quotas")
            assert "connections 9" in shown
            assert shown.endswith("nobody is throttled\n")
            await commands.run("user", "set-quota", "orders", "--connections", "-1")
            await commands.run("user", "set-quota", "*", "--consume-bytes", "-1")
            assert (await commands.json("user", "quotas"))["quotas"] == []
        nursery.cancel_scope.cancel()
