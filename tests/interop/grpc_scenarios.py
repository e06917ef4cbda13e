"""The scenarios of gRPC clients, which reach brokers through RocketMQ's proxy only.

``SCENARIOS`` holds those of all clients.
"""

from __future__ import annotations

import signal
from collections import Counter
from functools import partial

import trio

from mq.client import Admin
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from tests.interop.clients import GRPC
from tests.interop.scenarios import AFTER_SECONDS, DOWN_SECONDS, bodies, exactly_once, lacking, load_note, scenario
from tests.interop.special import SCENARIOS, in_time
from tests.interop.stage import Program, Stage, require

__all__ = ["SCENARIOS"]

DEAD_SECONDS_MAX = 40
"""A message that failed for the last time is dead when the proxy pops it once more."""

grpc = partial(scenario, protocol=GRPC)


async def _put_group(stage: Stage, *, orderly: bool = False, retries: int = 16) -> None:
    config = SubscriptionGroupConfig(
        group_name=f"{stage.name}-group", consume_message_orderly=orderly, retry_max_times=retries
    )
    async with Admin(stage.servers.namesrv) as admin:
        await admin.put_consumer_group(config)


def _times(program: Program) -> dict[str, list[int]]:
    """For each body how often it had been delivered before, delivery by delivery."""
    times: dict[str, list[int]] = {}
    for event in program.of("received"):
        times.setdefault(event["body"], []).append(event["times"])
    return times


def _note(program: Program) -> str:
    refused = program.of("retried")
    return f"{len(refused)} receives refused at first" if refused else ""


@grpc("grpc-send", "send, sync and async; simple consumer reads it all")
async def _send(stage: Stage) -> str:
    await _put_group(stage)
    program = await stage.play("grpc-send")
    exactly_once(program)
    ids = {event["body"]: event["id"] for event in program.of("sent")}
    for event in program.of("received"):
        number = event["body"].partition("-")[2]
        wanted = {"tags": "tag", "keys": [f"key-{number}"], "id": ids[event["body"]], "topic": stage.name, "times": 0}
        wrong = {name: (event[name], value) for name, value in wanted.items() if event[name] != value}
        require(not wrong, f"{event['body']}: received and wanted: {wrong}")
        require(event["properties"].get("colour") == "grün", event)
    stored = await stage.stored()
    require(sorted(message.message_id for message in stored) == sorted(ids.values()), "other ids are stored")
    for message in stored:
        told = message.tags, message.properties.get("colour"), "POP_CK" in message.properties
        require(told == ("tag", "grün", False), f"stored: {told}")
    return _note(program)


@grpc("grpc-simple", "simple consumer: acknowledged, left alone, given back, kept for longer", seconds_max=180)
async def _simple(stage: Stage) -> str:
    await _put_group(stage)
    program = await stage.play("grpc-simple")
    wanted = {body: [0, 1] if body.startswith(("left", "back")) else [0] for body in bodies(program.of("sent"))}
    times = _times(program)
    wrong = {body: (times.get(body), wanted[body]) for body in wanted if times.get(body) != wanted[body]}
    require(not wrong, f"deliveries, got and wanted: {wrong}")
    return _note(program)


@grpc("grpc-push", "push consumers: two share; what fails comes again, then is dead", seconds_max=180)
async def _push(stage: Stage) -> str:
    await _put_group(stage, retries=1)
    async with stage.playing("grpc-push") as program:
        await program.wait_for("delivered")
        dead = 0
        with trio.move_on_after(DEAD_SECONDS_MAX):
            while dead < 3:
                await trio.sleep(0.5)
                dead = await _dead(stage)
        await program.say("stop")
        await program.wait_for("done")
    wanted = {body: [0, 1] if body.startswith("bad") else [0] for body in bodies(program.of("sent"))}
    times = _times(program)
    wrong = {body: (times.get(body), wanted[body]) for body in wanted if times.get(body) != wanted[body]}
    require(not wrong, f"deliveries, got and wanted: {wrong}")
    require(dead == 3, f"{dead} dead letters, not 3")
    by = Counter(event["by"] for event in program.of("received"))
    require(by["a"] > 0 and by["b"] > 0, dict(by))
    return ", ".join(f"{name} {count}" for name, count in sorted(by.items()))


async def _dead(stage: Stage) -> int:
    topic = f"%DLQ%{stage.name}-group"
    async with Admin(stage.servers.namesrv) as admin:
        if topic not in await admin.topics():
            return 0
    return await stage.count(topic)


@grpc("grpc-fifo", "FIFO: eight message groups, one message fails once", message_type="FIFO")
async def _fifo(stage: Stage) -> str:
    await _put_group(stage, orderly=True)
    program = await stage.play("grpc-fifo")
    received = program.of("received")
    fails = "retry" not in lacking(program)
    for key in range(8):
        order = [int(body.partition("-")[2]) for body in bodies(received) if body.startswith(f"{key}-")]
        wanted = sorted([*range(10), *([4] if key == 3 and fails else [])])
        require(order == wanted, f"message group {key} came in the order {order}")
    return "" if fails else "no message failed: this client does not try it again before it goes on"


@grpc("grpc-filter", "push consumers with a filter: tags, SQL92")
async def _filter(stage: Stage) -> str:
    await _put_group(stage)
    program = await stage.play("grpc-filter")
    tags = ("AaTag", "BBTag", "TagC")
    every = [f"m-{number}-{tags[number % 3]}" for number in range(30)]
    wanted = {
        "tags": [body for body in every if not body.endswith("BBTag")],
        "sql": [body for number, body in enumerate(every) if number > 10 and number % 2 == 0],
    }
    for by, bodies_wanted in wanted.items():
        got = bodies(program.of("received", by=by))
        require(sorted(got) == sorted(bodies_wanted), f"{by}: wanted {sorted(bodies_wanted)}, got {sorted(got)}")
    return ""


@grpc("grpc-delay", "delivery at a time", message_type="DELAY")
async def _delay(stage: Stage) -> str:
    await _put_group(stage)
    program = await stage.play("grpc-delay")
    exactly_once(program)
    return in_time(program)


@grpc("grpc-recall", "a waiting message is called back", message_type="DELAY")
async def _recall(stage: Stage) -> str:
    await _put_group(stage)
    program = await stage.play("grpc-recall")
    ids = {event["body"]: event["id"] for event in program.of("sent")}
    recalled = {event["body"]: event["id"] for event in program.of("recalled")}
    require(recalled == {body: ids[body] for body in ("r-0", "r-2", "r-4")}, f"sent {ids}, called back {recalled}")
    got = sorted(bodies(program.of("received")))
    require(got == ["r-1", "r-3", "r-5"], f"received {got}")
    late = program.one("late")
    return f"after its delivery: {late.get('why', late.get('value'))}"


@grpc("grpc-transactions", "transactions with check-back", message_type="TRANSACTION")
async def _transactions(stage: Stage) -> str:
    await _put_group(stage)
    program = await stage.play("grpc-transactions")
    sent = {event["body"]: event["id"] for event in program.of("sent")}
    wanted = sorted(body for body in sent if body.endswith("commit"))
    got = sorted(bodies(program.of("received")))
    require(got == wanted, f"wanted {wanted}, got {got}")
    checked = Counter(bodies(program.of("checked")))
    require(checked.keys() == {body for body in sent if "-late-" in body}, f"asked about {dict(checked)}")
    for event in (*program.of("checked"), *program.of("received")):
        require(event["id"] == sent[event["body"]], f"sent as {sent[event['body']]}: {event}")
        require(event["topic"] == stage.name, event)
    return f"{len(got)} visible, {checked.total()} checks"


SILENCE_SECONDS_MAX = 5.0
"""How much longer than the outage of a leader a client may be without an acknowledgement."""
GOES_ON_SECONDS_MAX = 2.0
"""The same for the outage of a proxy, besides the pause of the client's gRPC library between two connects."""
BACKOFF_SHARE = 0.72
"""After a time T without a server, libraries of gRPC wait for 0.6 T and a fifth of that before they connect again."""


async def _stored_what_was_acknowledged(stage: Stage, program: Program) -> None:
    stored = {message.message_id for message in await stage.stored()}
    acknowledged: int = program.one("load")["acknowledged"]
    require(len(stored) >= acknowledged, f"{acknowledged} acknowledged, {len(stored)} stored")


@grpc("grpc-leader-killed", "the leader is killed and comes back", alone=True, seconds_max=240)
async def _leader_killed(stage: Stage) -> str:
    await _put_group(stage)
    cluster = stage.cluster
    async with stage.playing("grpc-load") as program:
        await program.wait_for("running")
        leader = await cluster.leader()
        cluster.kill(leader)
        await trio.sleep(DOWN_SECONDS)
        await cluster.start(leader)
        await cluster.wait_ready()
        await trio.sleep(AFTER_SECONDS)
        await program.say("stop")
        await program.wait_for("done")
    await _stored_what_was_acknowledged(stage, program)
    note = load_note(program)
    # The other replicas elect a leader while this one is away.
    require(program.one("load")["longest_gap_ms"] < 1000 * (DOWN_SECONDS + SILENCE_SECONDS_MAX), note)
    return note


async def _proxy_stopped(stage: Stage, number: signal.Signals) -> str:
    """Stop the proxy twice under load, and start it again at once."""
    assert stage.proxy is not None, "this client connects to another proxy"
    await _put_group(stage)
    down = 0.0
    async with stage.playing("grpc-load") as program:
        await program.wait_for("running")
        for _ in range(2):
            began = trio.current_time()
            await stage.proxy.stop(number)
            await stage.proxy.start()
            down = max(down, trio.current_time() - began)
            await trio.sleep(AFTER_SECONDS)
        await program.say("stop")
        await program.wait_for("done")
    await _stored_what_was_acknowledged(stage, program)
    note = f"{load_note(program)}, proxy away for {down:.1f} s at most"
    require("settings is null" not in note, note)
    goes_on = GOES_ON_SECONDS_MAX + BACKOFF_SHARE * down
    require(program.one("load")["longest_gap_ms"] < 1000 * (down + goes_on), note)
    return note


@grpc("grpc-proxy-stopped", "the proxy is stopped and started again, twice", alone=True, seconds_max=300)
async def _stopped(stage: Stage) -> str:
    return await _proxy_stopped(stage, signal.SIGTERM)


@grpc("grpc-proxy-killed", "the proxy is killed and started again, twice", alone=True, seconds_max=300)
async def _killed(stage: Stage) -> str:
    return await _proxy_stopped(stage, signal.SIGKILL)
