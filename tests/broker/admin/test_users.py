"""Users by request, over sockets: what is made, shown, refused, and what they may do then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
from structlog.testing import capture_logs

from mq.broker.access.sealing import is_sealed_with
from mq.broker.broker import Broker
from mq.protocol.codes import RequestCode, ResponseCode
from raftlog.net.secret_file import new_secret, read_secrets, write_secrets
from tests.support.guarded import ADMIN, FILE, USER, connect, guarded
from tests.support.running_broker import Answer, Client, limited, pull_ext, send_ext
from tests.support.waiting import until

OK, NO_PERMISSION = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
INVALID = ResponseCode.INVALID_PARAMETER


async def ask(client: Client, code: int, ext: dict[str, str], **body: Any) -> Answer:
    return await client.request(code, ext, json.dumps(body).encode() if body else b"")


async def create(client: Client, name: str = USER[0], **body: Any) -> int:
    given = {"username": name, "password": USER[1], "userType": "Normal"} | body
    return (await ask(client, RequestCode.AUTH_CREATE_USER, {"username": name}, **given)).code


async def update(client: Client, name: str = USER[0], **body: Any) -> int:
    return (await ask(client, RequestCode.AUTH_UPDATE_USER, {"username": name}, **{"username": name} | body)).code


async def put(client: Client, resource: str, *actions: str, decision: str = "Allow", name: str = USER[0]) -> int:
    """As ``mqadmin createAcl`` asks: without a type of policies."""
    entry = {"resource": resource, "actions": actions, "decision": decision}
    body = {"subject": f"User:{name}", "policies": [{"entries": [entry]}]}
    return (await ask(client, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, **body)).code


async def shown(client: Client, code: int, **ext: str) -> Any:
    answer = await ask(client, code, ext)
    assert answer.code == OK, answer
    return json.loads(answer.body) if answer.body else None


async def send(client: Client, topic: str = "T") -> int:
    return (await client.request(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"x")).code


async def test_policies_apply_to_a_user_until_it_is_disabled_or_deleted(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, admin):
        user = await connect(broker, USER)
        assert await send(user) == NO_PERMISSION
        assert await create(admin) == OK
        assert await send(user) == NO_PERMISSION
        assert await put(admin, "Topic:T", "Pub", "Sub") == OK
        assert await send(user) == OK
        assert await send(user, "U") == NO_PERMISSION
        assert (await user.request(RequestCode.PULL_MESSAGE, pull_ext("T"))).code == NO_PERMISSION
        assert await put(admin, "Group:*", "Sub") == OK
        assert (await user.request(RequestCode.PULL_MESSAGE, pull_ext("T"))).code == OK
        assert await put(admin, "Topic:T", "Pub", decision="Deny") == OK
        assert await send(user) == NO_PERMISSION
        assert await put(admin, "Topic:T", "All") == OK
        assert await send(user) == OK
        assert await update(admin, userStatus="disable") == OK
        answer = await user.request(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        assert (answer.code, "disabled" in str(answer.remark)) == (NO_PERMISSION, True)
        assert await update(admin, userStatus="enable") == OK
        assert await send(user) == OK
        assert await update(admin, password="user-SECRET-2") == OK
        assert await send(user) == NO_PERMISSION
        user.keys = (USER[0], "user-SECRET-2")
        assert await send(user) == OK
        assert (await ask(admin, RequestCode.AUTH_DELETE_USER, {"username": USER[0]})).code == OK
        assert await send(user) == NO_PERMISSION
        assert await create(admin) == OK
        user.keys = USER
        assert await send(user) == NO_PERMISSION, "policies were deleted with the user"


async def test_only_administrators_change_and_see_users(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, admin):
        await create(admin)
        await put(admin, "*", "All")
        user = await connect(broker, USER)
        for code in range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1):
            answer = await ask(user, code, {"username": USER[0], "subject": f"User:{USER[0]}"})
            assert answer.code == NO_PERMISSION, code
        assert await update(admin, userType="super") == OK
        assert (await shown(user, RequestCode.AUTH_GET_USER, username=USER[0]))["userType"] == "Super"


async def test_user_listings_and_logs_contain_no_secrets(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with guarded(tmp_path) as (_, admin):
            assert await shown(admin, RequestCode.AUTH_LIST_USER) == []
            for name, kind in (("orders", "Normal"), ("billing", "Super")):
                await create(admin, name, userType=kind)
            await update(admin, userStatus="disable")
            await put(admin, "Topic:Or*", "Pub", "Sub")
            await put(admin, "Group:G", "Sub", decision="Deny")
            await put(admin, "*", "All", name="billing")
            orders = {"username": "orders", "userType": "Normal", "userStatus": "disable"}
            billing = {"username": "billing", "userType": "Super", "userStatus": "enable"}
            assert await shown(admin, RequestCode.AUTH_GET_USER, username="orders") == orders
            assert await shown(admin, RequestCode.AUTH_GET_USER, username="nobody") is None
            assert await shown(admin, RequestCode.AUTH_LIST_USER) == [billing, orders]
            assert await shown(admin, RequestCode.AUTH_LIST_USER, filter="ord") == [orders]
            entries = [
                {"resource": "Group:G", "actions": ["Sub"], "sourceIps": None, "decision": "Deny"},
                {"resource": "Topic:Or*", "actions": ["Pub", "Sub"], "sourceIps": None, "decision": "Allow"},
            ]
            acl = {"subject": "User:orders", "policies": [{"policyType": "Custom", "entries": entries}]}
            assert await shown(admin, RequestCode.AUTH_GET_ACL, subject="User:orders") == acl
            assert [each["subject"] for each in await shown(admin, RequestCode.AUTH_LIST_ACL)] == [
                "User:billing",
                "User:orders",
            ]
            acl["policies"] = [{"policyType": "Custom", "entries": entries[1:]}]
            assert await shown(admin, RequestCode.AUTH_LIST_ACL, subjectFilter="ord", resourceFilter="Topic") == [acl]
            deleted = {"subject": "User:orders", "resource": "Group:G"}
            assert (await ask(admin, RequestCode.AUTH_DELETE_ACL, deleted)).code == OK
            assert await shown(admin, RequestCode.AUTH_GET_ACL, subject="User:orders") == acl
            assert (await ask(admin, RequestCode.AUTH_DELETE_ACL, deleted)).code == OK, "mqadmin asks each replica"
            assert (await ask(admin, RequestCode.AUTH_DELETE_ACL, {"subject": "User:orders"})).code == OK
            assert await shown(admin, RequestCode.AUTH_GET_ACL, subject="User:orders") is None
    assert not [entry for entry in logs if "SECRET" in str(entry)]
    changes = [entry["change"] for entry in logs if entry["event"] == "user_changed" and entry["user"] == "orders"]
    assert changes == ["created", "updated", "policies put", "policies put", "policies deleted", "policies deleted"]
    for path in (tmp_path / "n0").rglob("*"):
        assert path.is_dir() or b"SECRET" not in path.read_bytes(), f"a secret is in {path}"


async def test_refused_changes_leave_no_state(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, admin):
        await create(admin)
        last_index = (await admin.info())["raftmq.lastIndex"]
        assert await create(admin) == OK, "mqadmin asks each replica"
        for given in ({"password": "another one"}, {"userType": "Super"}, {"userStatus": "disable"}):
            assert await create(admin, **given) == INVALID, given
        for name in ("", "../x", "a\nb", "a\x1b[2J", "x" * 65, "a b"):
            assert await create(admin, name) == INVALID
        assert await create(admin, ADMIN[0]) == NO_PERMISSION, "it is in the file"
        assert await update(admin, ADMIN[0], userStatus="disable") == NO_PERMISSION
        for given in ({"password": ""}, {"password": "short"}, {"password": "x" * 129}, {"userType": "Root"}):
            assert await create(admin, "another", **given) == INVALID, given
        assert await update(admin, userStatus="maybe") == INVALID
        assert await update(admin, "nobody", userStatus="enable") == ResponseCode.USER_NOT_EXIST
        assert await put(admin, "Topic:T", "Pub", name="nobody") == ResponseCode.USER_NOT_EXIST
        for resource in ("T", "Topic:../x", "Topic:", "Tpic:T"):
            assert await put(admin, resource, "Pub") == INVALID, resource
        assert await put(admin, "Topic:T", "Write") == INVALID
        assert await put(admin, "Topic:T") == INVALID
        assert await put(admin, "Topic:T", "Pub", decision="") == INVALID
        entry = {"resource": "Topic:T", "actions": ["Pub"], "sourceIps": ["nowhere"], "decision": "Allow"}
        policies = [{"policyType": "Custom", "entries": [entry]}]
        subject = {"subject": f"User:{USER[0]}"}
        assert (await ask(admin, RequestCode.AUTH_UPDATE_ACL, subject, policies=policies)).code == INVALID
        assert (await ask(admin, RequestCode.AUTH_UPDATE_ACL, {"subject": "orders"}, policies=[])).code == INVALID
        assert (await ask(admin, RequestCode.AUTH_UPDATE_ACL, subject, policies="x")).code == ResponseCode.SYSTEM_ERROR
        assert (await ask(admin, RequestCode.AUTH_DELETE_ACL, subject)).code == OK
        nobody = {"subject": "User:nobody"}
        assert (await ask(admin, RequestCode.AUTH_DELETE_ACL, nobody)).code == ResponseCode.USER_NOT_EXIST
        assert (await admin.info())["raftmq.lastIndex"] == last_index


async def test_users_are_refused_until_all_members_support_users(tmp_path: Path) -> None:
    async with guarded(tmp_path, level=1, format_level_max=1) as (_, admin):
        answer = await ask(admin, RequestCode.AUTH_CREATE_USER, {"username": "u"}, password=USER[1])
        assert (answer.code, "format level 1" in str(answer.remark)) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)


async def test_broker_without_accounts_has_no_users(client: Client) -> None:
    answer = await ask(client, RequestCode.AUTH_CREATE_USER, {"username": "u"}, password=USER[1])
    assert (answer.code, "acl_file" in str(answer.remark)) == (NO_PERMISSION, True)
    assert await shown(client, RequestCode.AUTH_LIST_USER) == []


async def test_users_outlive_a_restart_and_the_exchange_of_the_group_secret(
    tmp_path: Path, brokers: list[Broker]
) -> None:
    secret_file = tmp_path / "n0" / "group.secret"
    async with guarded(tmp_path, limits=limited(upkeep={"reseal_seconds": 0.02})) as (_, admin):
        await create(admin)
        await put(admin, "Topic:T", "Pub")
    (old,) = read_secrets(str(secret_file))
    new = new_secret()
    write_secrets(str(secret_file), [new, old])
    async with guarded(tmp_path, limits=limited(upkeep={"reseal_seconds": 0.02})) as (broker, admin):
        user = await connect(broker, USER)
        assert await send(user) == OK

        async def is_sealed_anew() -> bool:
            return await admin.alive() and is_sealed_with(new, brokers[-1]._metadata.users.table[USER[0]].sealed)

        await until(is_sealed_anew)
        assert await send(user) == OK
    write_secrets(str(secret_file), [new])
    async with guarded(tmp_path, limits=limited(upkeep={"reseal_seconds": 0.02})) as (broker, admin):
        assert await send(await connect(broker, USER)) == OK
    write_secrets(str(secret_file), [new_secret()])
    with capture_logs() as logs:
        async with guarded(tmp_path, limits=limited(upkeep={"reseal_seconds": 0.02})) as (broker, admin):
            user = await connect(broker, USER)
            answer = await user.request(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
            assert (answer.code, "password again" in str(answer.remark)) == (NO_PERMISSION, True)
            assert await update(admin, password=USER[1]) == OK
            assert await send(user) == OK
    assert [entry["user"] for entry in logs if entry["event"] == "user_unusable"] == [USER[0]]


async def test_accounts_of_the_file_have_precedence_over_users(tmp_path: Path) -> None:
    keys = ("orders-service", USER[1])
    async with guarded(tmp_path, limits=limited(upkeep={"refresh_files_seconds": 0.01})) as (broker, admin):
        await create(admin, keys[0])
        await put(admin, "*", "All", name=keys[0])
        user = await connect(broker, keys)
        assert await send(user) == OK
        path = tmp_path / "plain_acl.yml"
        path.write_text(FILE.replace("]", ", {accessKey: orders-service, secretKey: file-SECRET}]"))
        with trio.fail_after(30):
            while await send(user) == OK:
                pass
        user.keys = (keys[0], "file-SECRET")
        answer = await user.request(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        assert "no permission PUB" in str(answer.remark), "what the file says counts"
        path.write_text(FILE)
        user.keys = keys
        with trio.fail_after(30):
            while await send(user) != OK:
                pass
