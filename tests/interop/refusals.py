"""The scenarios about whom secured servers refuse: wrong keys, missing permissions, no TLS, users that come and go.

``SCENARIOS`` holds those of all clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mq.client import Admin
from tests.interop.mqadmin import Tool
from tests.interop.removals import SCENARIOS
from tests.interop.scenarios import scenario
from tests.interop.security import ACL, CLIENT, READER, TLS, Keys, other_authority
from tests.interop.stage import QUEUES, BrokerLogs, Stage, Unmet, require

__all__ = ["SCENARIOS"]

_KEYS: Mapping[str, tuple[Keys | None, str]] = {
    "wrong secret key": (Keys(CLIENT.access_key, "wrong-SECRET"), "the signature does not match"),
    "unknown account": (Keys("interop-nobody", CLIENT.secret_key), "unknown access key"),
    "no keys": (None, "must be signed"),
    "an account that may only read": (READER, "has no permission PUB"),
}
"""Who may not send: with which keys, and in which words a broker says so."""


@scenario("refused", "wrong keys, no keys, no permission: refused in words, nothing is stored", security=(ACL,))
async def _refused(stage: Stage) -> str:
    for what, (keys, words) in _KEYS.items():
        await _is_refused(replace(stage, security=stage.security.signed_by(keys)), what, words)
    require(not await stage.stored(), "something of it is stored")
    return ", ".join(_KEYS)


@scenario("unencrypted", "without TLS, or with an authority that has not signed: nothing is sent", security=(TLS,))
async def _unencrypted(stage: Stage) -> str:
    told = []
    for what, authority in (("without TLS", None), ("another authority", other_authority(stage.directory))):
        other = replace(stage, security=stage.security.trusting(authority))
        told.append(f"{what}: {await _is_refused(other, what, '')}")
    require(not await stage.stored(), "something of it is stored")
    return "; ".join(told)


async def _is_refused(stage: Stage, what: str, words: str) -> str:
    """What the program is told when it sends. Raises Unmet if anything is received.

    Also unless ``words`` are in it, or in the log of a broker: some clients keep the reason of a refusal to themselves.
    """
    other = _other(stage, what)
    logs = BrokerLogs(stage.servers)
    try:
        program = await other.play("send")
    except Unmet as error:
        told = str(error)
    else:
        told = str(program.of("unsent"))
        require(not program.of("read"), f"{what}: messages were sent and read")
    require(words in told or words in logs.text(), f"{what}: the client tells {told!r}, and not that {words!r}")
    return told.splitlines()[0][:160]


def _other(stage: Stage, what: str) -> Stage:
    """The same stage with a directory of its own."""
    directory = stage.directory / what.replace(" ", "-")
    directory.mkdir(exist_ok=True)
    return replace(stage, directory=directory)


@scenario("users", "users and policies come and go by mqadmin", security=(ACL,))
async def _users(stage: Stage) -> str:
    topic, user = f"{stage.name}-theirs", f"{stage.name}-user"
    keys = Keys(user, "a-PASSWORD-4711")
    theirs = replace(stage, name=topic, security=stage.security.signed_by(keys))
    async with Admin(stage.servers.namesrv) as admin:
        await admin.create_topic(topic, QUEUES)
    async with Tool.open(stage) as tool:
        shown = []

        async def run(line: str, *words: str) -> None:
            output = await tool.run(line)
            shown.append(output)
            wrong = [word for word in words if word not in output]
            require(not wrong, f"mqadmin {line}: {output.strip()[:300]!r} has no {wrong}")

        await _is_refused(theirs, "before", "unknown access key")
        await run(f"createUser -c DefaultCluster -u {user} -p {keys.secret_key} -t Normal", "success")
        await run(f"getUser -c DefaultCluster -u {user}", user, "Normal")
        await run("listUser -c DefaultCluster", user)
        await _is_refused(theirs, "without policies", "has no permission PUB")
        policy = f"-c DefaultCluster -s User:{user}"
        await run(f"createAcl {policy} -r Topic:{topic} -a Pub,Sub -d Allow", "success")
        await run(f"createAcl {policy} -r Group:{topic}* -a Sub -d Allow", "success")
        await run(f"getAcl {policy}", f"Topic:{topic}", "Pub", "Allow")
        await run("listAcl -c DefaultCluster", user, f"Group:{topic}*")
        sent = len((await _other(theirs, "allowed").play("send")).of("sent"))
        await run(f"updateAcl {policy} -r Topic:{topic} -a Sub -d Allow", "success")
        await _is_refused(theirs, "may not send any more", "has no permission PUB")
        await run(f"updateUser -c DefaultCluster -u {user} -s disable", "success")
        await _is_refused(theirs, "disabled", "is disabled")
        await run(f"deleteAcl {policy} -r Topic:{topic}", "success")
        await run(f"deleteUser -c DefaultCluster -u {user}", "success")
        await _is_refused(theirs, "deleted", "unknown access key")
        stored = len(await theirs.stored())
        require(stored == sent, f"{sent} sent by the user, {stored} stored")
        require(not any(keys.secret_key in output for output in shown), "mqadmin showed the password")
    return f"{len(shown)} commands"
