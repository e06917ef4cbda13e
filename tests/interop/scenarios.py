"""What each scenario asks of a client and a cluster. The programs' part of it is told in README.md.

A scenario is a function that plays the program on a stage and raises Unmet unless all is as it should be. What it
returns goes into the report as a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from mq.client import ReceivedMessage
from tests.interop.clients import REMOTING
from tests.interop.security import ACL, NONE, TLS
from tests.interop.stage import QUEUES, Event, Program, Stage, Unmet, require

AFTER_SECONDS = 12.0
DOWN_SECONDS = 3.0
RECOVERY_SECONDS_MAX = 2.0

Play = Callable[[Stage], Awaitable[str]]


@dataclass(frozen=True)
class Scenario:
    """``alone``: it disturbs the cluster, so nothing else runs meanwhile.

    ``protocol`` is that of the clients that play it, ``message_type`` that of its topic, None for any, and ``security``
    names the ways to secure servers with which it is played.
    """

    name: str
    title: str
    play: Play
    seconds_max: float
    alone: bool
    protocol: str
    message_type: str | None
    security: tuple[str, ...]


SCENARIOS: dict[str, Scenario] = {}
"""By name, in the order of the report."""


def scenario(
    name: str,
    title: str,
    *,
    seconds_max: float = 120,
    alone: bool = False,
    protocol: str = REMOTING,
    message_type: str | None = None,
    security: tuple[str, ...] = (NONE, ACL, TLS),
) -> Callable[[Play], Play]:
    """Decorator: a scenario under this name."""

    def register(play: Play) -> Play:
        SCENARIOS[name] = Scenario(name, title, play, seconds_max, alone, protocol, message_type, security)
        return play

    return register


def bodies(events: list[Event]) -> list[str]:
    """What was in the messages."""
    return [event["body"] for event in events]


def exactly_once(program: Program, received: list[Event] | None = None) -> None:
    """Raises Unmet unless what was sent arrived, each once, and nothing else."""
    sent, counts = (
        set(bodies(program.of("sent"))),
        Counter(bodies(program.of("received") if received is None else received)),
    )
    lost, more = sorted(sent - counts.keys()), {body: n for body, n in counts.items() if n != 1 or body not in sent}
    require(not lost and not more, f"of {len(sent)} sent, not received: {lost[:10]}; received so often: {more}")


def lacking(program: Program) -> set[str]:
    return {name for event in program.of("lacking") for name in event["calls"]}


@scenario("send", "send in all forms")
async def _send(stage: Stage) -> str:
    import zlib

    program = await stage.play("send")
    require(not program.of("unsent"), program.of("unsent"))
    sent = program.of("sent")
    require(sent, "nothing was sent")
    stored = {zlib.crc32(message.body): message for message in await stage.stored()}
    read = {event["crc"]: event for event in program.of("read")}
    require(len(program.of("read")) == len(read) == len(stored), f"{len(read)} read by the client itself")
    codecs = Counter(CODECS[message.record.sys_flag >> 8 & 3] for message in stored.values() if _is_compressed(message))
    for event in sent:
        message = stored.pop(event["crc"], None)
        if message is None:
            raise Unmet(f"not stored: {event}")
        there = {
            "length": len(message.body),
            "id": message.message_id,
            "offset_id": message.offset_message_id,
            "queue": message.queue.queue_id,
            "offset": message.queue_offset,
            "tags": message.tags,
            "keys": " ".join(message.keys) or None,
            "colour": message.properties.get("colour"),
            "face": message.properties.get("face"),
        }
        # A delayed message is stored a second time when it is due; the answer told of the first one.
        blind = {"one-way": ("id", "offset_id", "queue", "offset"), "delayed": ("offset_id", "offset", "queue")}
        unchecked = (*blind.get(event["form"], ()), *event.get("untold", ()))
        wrong = {
            key: (event[key], value) for key, value in there.items() if key not in unchecked and event.get(key) != value
        }
        require(not wrong, f"{event['form']}: told and stored differ: {wrong}")
        seen = read[event["crc"]]
        wrong = {key: (value, there[key]) for key, value in seen.items() if key in there and value != there[key]}
        require(not wrong, f"{event['form']}: read and stored differ: {wrong}")
        if event["form"] != "one-way":
            require(event["status"] == "SEND_OK", event)
        if event["form"] == "delayed":
            waited = message.record.store_timestamp_ms - message.record.born_timestamp_ms
            require(990 <= waited < 5000, f"delayed by {waited} ms")
    require(not stored, f"stored and never sent: {list(stored.values())}")
    sharded = {event["queue"] for event in sent if event["form"] == "sharded"}
    require(len(sharded) <= 1, f"one key in queues {sharded}")
    forms = Counter(event["form"] for event in sent)
    return ", ".join(f"{form} {count}" for form, count in (forms + codecs).items())


CODECS = ("zlib", "lz4", "zstd", "zlib")


def _is_compressed(message: ReceivedMessage) -> bool:
    return bool(message.record.sys_flag & 1)


@scenario("push", "push consumers: two share, one leaves, one goes on")
async def _push(stage: Stage) -> str:
    program = await stage.play("push")
    exactly_once(program)
    by = Counter(event["by"] for event in program.of("received"))
    require(by["a"] > 0 and by["b"] > 0 and by["c"] == 20, dict(by))
    return ", ".join(f"{name} {count}" for name, count in sorted(by.items()))


@scenario("broadcast", "broadcasting: two instances read everything")
async def _broadcast(stage: Stage) -> str:
    program = await stage.play("broadcast")
    for instance in ("a", "b"):
        exactly_once(program, program.of("received", by=instance))
    return ""


@scenario("orderly", "ordered consumption, an instance leaves")
async def _orderly(stage: Stage) -> str:
    program = await stage.play("orderly")
    exactly_once(program)
    for key in sorted({body.partition("-")[0] for body in bodies(program.of("sent"))}):
        order = [int(b.partition("-")[2]) for b in bodies(program.of("received")) if b.startswith(f"{key}-")]
        require(order == sorted(order), f"key {key} came in the order {order}")
    return ""


@scenario("tags", "tag filter")
async def _tags(stage: Stage) -> str:
    program = await stage.play("tags")
    wanted = {body for body in bodies(program.of("sent")) if body.endswith(("-AaTag", "-TagC"))}
    got = bodies(program.of("received"))
    require(sorted(got) == sorted(wanted), f"wanted {sorted(wanted)}, got {sorted(got)}")
    return ""


@scenario("sql", "SQL92 filter; a bad expression is refused")
async def _sql(stage: Stage) -> str:
    program = await stage.play("sql")

    def matches(number: int) -> bool:
        colour = None if number % 4 == 0 else "rot" if number % 3 == 0 else "grün"
        odd = number % 2 == 1
        # NOT (colour = 'rot') is unknown without a colour, so that OR colour IS NULL adds nothing.
        return ((odd or colour is None) and 5 <= number <= 35 and colour not in (None, "rot")) or (
            colour == "grün" and number == 2
        )

    wanted = [f"m-{number}" for number in range(40) if matches(number)]
    got = bodies(program.of("received"))
    require(sorted(got) == sorted(wanted), f"wanted {wanted}, got {sorted(got)}")
    require(program.of("refused"), "a subscription with a bad expression was accepted")
    return str(program.one("refused")["why"]).splitlines()[0][:160]


@scenario("start", "a new group begins at the first, the last, a time")
async def _start(stage: Stage) -> str:
    program = await stage.play("start")
    for instance, first in {"first": 0, "last": 16, "timestamp": 8, "young": 0}.items():
        numbers = sorted(int(body[2:]) for body in bodies(program.of("received", by=instance)))
        require(numbers == list(range(first, 24)), f"{instance}: got {numbers}")
    return ""


async def _retried(stage: Stage, name: str) -> str:
    program = await stage.play(name)
    times: dict[str, list[int]] = {}
    for event in program.of("received"):
        times.setdefault(event["body"], []).append(event["times"])
        require(event["topic"] == stage.name, f"delivered as topic {event['topic']}")
    wanted = {body: [0, 1, 2] if body.startswith("bad") else [0] for body in bodies(program.of("sent"))}
    require(times == wanted, f"deliveries {times}")
    dead = await stage.count(f"%DLQ%{stage.name}-group")
    require(dead == 2, f"{dead} dead letters")
    return ""


@scenario("retry", "retry to dead letter")
async def _retry(stage: Stage) -> str:
    return await _retried(stage, "retry")


@scenario("retry-orderly", "ordered retry to dead letter")
async def _retry_orderly(stage: Stage) -> str:
    return await _retried(stage, "retry-orderly")


@scenario("pull", "pull consumer")
async def _pull(stage: Stage) -> str:
    program = await stage.play("pull")
    exactly_once(program)
    ends = program.of("end")
    require(len(ends) == QUEUES, ends)
    for end in ends:
        require(end["offset"] == end["max"] == end.get("at end", end["max"]) and end.get("at start", 0) == 0, end)
    stored = {event["queue"]: event["offset"] for event in program.of("stored")}
    if "stored" not in lacking(program):
        require(stored == {end["queue"]: end["offset"] for end in ends}, f"offsets stored: {stored}")
    woken = program.one("woken")
    require((woken["status"], woken["body"]) == ("FOUND", "late"), woken)
    return ""


@scenario("lite-pull", "lite pull consumer: shared, assigned, seeking")
async def _lite_pull(stage: Stage) -> str:
    program = await stage.play("lite-pull")
    exactly_once(program, program.of("received", by="own"))
    shared = set(bodies(program.of("received", by="shared")))
    require(shared == set(bodies(program.of("sent"))), f"{len(shared)} by the two that share")
    stored = program.of("stored")
    require(sum(event["offset"] for event in stored) == 100, stored)
    require(all(event["at start"] == 0 for event in stored), stored)
    return ""


@scenario("reset", "reset by time while consuming")
async def _reset(stage: Stage) -> str:
    async with stage.playing("reset") as program:
        await program.wait_for("reset", "consumed")
        if program.of("consumed"):  # the client cannot order it
            offsets = await stage.reset(f"{stage.name}-group", program.one("between")["at"])
        else:
            offsets = program.one("reset")["offsets"]
        require(sum(offsets.values()) == 20, f"reset to {offsets}")
        await program.wait_for("done")
    counts = Counter(bodies(program.of("received")))
    wanted = {f"m-{number}": 1 if number < 20 else 2 for number in range(40)}
    require(counts == wanted, f"not as wanted: { {b: n for b, n in counts.items() if wanted.get(b) != n} }")
    return ""


@scenario("recreated", "topic deleted and created again while consuming, and while stopped", seconds_max=180)
async def _recreated(stage: Stage) -> str:
    async with stage.playing("recreated") as program:
        for number in (1, 2):
            await program.wait_for("consumed", number=number)
            await stage.recreate()
            await program.say("recreated")
        await program.wait_for("done")
    for kind in ("push", "orderly", "broadcast"):
        exactly_once(program, program.of("received", by=kind))
    return ""


def _calls(program: Program, wanted: dict[str, str | None]) -> str:
    """Each call's value, or None where any will do. All that fail are told together. Left out are those it lacks."""
    wanted = {name: value for name, value in wanted.items() if name not in lacking(program)}
    wrong = [f"{e['name']}: {e['error'].splitlines()[0]}" for e in program.of("call") if "error" in e]
    values = {event["name"]: event["value"] for event in program.of("call") if "value" in event}
    wrong += [f"{k}: {values[k]!r}, not {v!r}" for k, v in wanted.items() if v is not None and values.get(k, v) != v]
    wrong += [f"{name}: never made" for name in wanted if not program.of("call", name=name)]
    require(not wrong, "; ".join(wrong))
    return f"{len(values)} calls"


@scenario("lookup", "lookup by key, unique id, offset id, time")
async def _lookup(stage: Stage) -> str:
    program = await stage.play("lookup")
    shared = next((e.get("value", "") for e in program.of("call", name="by shared key")), "")
    require(sorted(shared.strip("[]").split(", ")) == sorted(f"m-{n}" for n in range(20)), f"by shared key: {shared}")
    return _calls(
        program,
        {
            "by key": "[m-7]",
            "by key, other time": "208",
            "by unique id": "m-7",
            "by unique id, producer": "m-8",
            "by offset id": "m-9 true",
            "earliest": "true",
            "offsets": "0 5",
            "offset by time": "0 5",
        },
    )


@scenario("admin", "admin client's calls")
async def _admin(stage: Stage) -> str:
    program = await stage.play("admin")
    return _calls(
        program,
        {
            "clusterInfo": None,
            "createTopic": "",
            "route": "3 2 6",
            "topicConfig": "3",
            "topicList": "true",
            "topicsOfCluster": "true",
            "allTopicConfig": "true",
            "createGroup": None,
            "group": "5",
            "allGroups": "true",
            "topicStats": f"{QUEUES} 40",
            "consumeStats": f"{QUEUES} 0",
            "consumeStatsOfGroup": "0",
            "consumerConnection": "1 true",
            "producerConnection": "1",
            "consumerRunningInfo": None,
            "consumerStatus": "true",
            "whoConsumes": "true",
            "consumeTimeSpan": str(QUEUES),
            "runtimeStats": "true",
            "brokerConfig": "true",
            "consumeDirectly": "CR_SUCCESS",
            "kv": "v",
            "cloneGroupOffset": str(QUEUES),
            "deleteGroup": "false",
            "deleteTopic": "false",
        },
    )


@scenario("mqadmin", "mqadmin commands")
async def _mqadmin(stage: Stage) -> str:
    program = await stage.play("mqadmin")
    commands = program.of("command")
    signs = ("Exception", "error", "failed", "not exist")
    wrong = [
        f"{event['line'].split()[0]}: {event['output'].strip()[:200]}"
        for event in commands
        if any(sign in event["output"] for sign in signs) or not event["output"].strip()
    ]
    require(commands, "no command was run")
    require(not wrong, "; ".join(wrong))
    return f"{len(commands)} commands"


def load_note(program: Program) -> str:
    """What a program under load tells. Raises Unmet if something is lost, out of order or too early."""
    load = program.one("load")
    missing = load["missing"]
    require(not missing, f"{len(missing)} acknowledged and never received, such as {missing[:10]}")
    require(not load.get("disorder"), f"{load.get('disorder')} messages came before their turn")
    require(not load.get("unwanted"), f"received, and should not have been: {load.get('unwanted')}")
    require(not load.get("early"), f"{load.get('early')} messages came too early")
    more = {name: load[name] for name in ("checks", "recalled", "unrecalled", "latest_ms", "story") if name in load}
    errors = ", ".join(f"{count} {name}" for name, count in load["errors"].items()) or "none"
    return (
        f"{load['acknowledged']} acknowledged, errors: {errors}, received twice: {load['twice']}, "
        f"longest pause {load['longest_gap_ms']} ms{''.join(f', {k}: {v}' for k, v in more.items())}"
    )


async def _acknowledged_are_stored(stage: Stage, program: Program) -> None:
    stored = await stage.stored()
    load = program.one("load")
    wanted: int = load["wanted"] if "wanted" in load else load["acknowledged"]
    different = len({message.message_id for message in stored})
    require(different >= wanted, f"{wanted} acknowledged, {different} stored")
    # A client that sends a message again notes a new time in it; a broker that shows one twice does not.
    copies = Counter((message.message_id, message.record.born_timestamp_ms) for message in stored)
    twice = [key for key, count in copies.items() if count > 1]
    require(not twice, f"{len(twice)} messages are stored more than once, such as {twice[:3]}")


async def killed(stage: Stage, program_scenario: str, *, recovery_seconds: float = RECOVERY_SECONDS_MAX) -> str:
    """Kill the leader under load and start it again; what was acknowledged must be there and have arrived.

    Args:
        recovery_seconds: what the client may need after the leader is back to be served.
    """
    cluster = stage.cluster
    async with stage.playing(program_scenario) as program:
        await program.wait_for("running")
        leader = await cluster.leader()
        began = trio.current_time()
        cluster.kill(leader)
        await trio.sleep(DOWN_SECONDS)
        await cluster.start(leader)
        await cluster.wait_ready()
        down = trio.current_time() - began
        await trio.sleep(AFTER_SECONDS + max(stage.client.stays_away_seconds, recovery_seconds))
        await program.say("stop")
        await program.wait_for("done")
    await _acknowledged_are_stored(stage, program)
    note = f"{load_note(program)}, down {down:.1f} s"
    # It comes back under the address that the client knows, so nobody has to wait for the next look at the route.
    recovery = recovery_seconds + stage.client.stays_away_seconds
    require(program.one("load")["longest_gap_ms"] < (down + recovery) * 1000, note)
    return note


async def _transferred(stage: Stage, program_scenario: str) -> str:
    async with stage.playing(program_scenario) as program:
        await program.wait_for("running")
        for _ in range(2):
            await stage.transfer()
            await trio.sleep(AFTER_SECONDS / 2)
        await program.say("stop")
        await program.wait_for("done")
    await _acknowledged_are_stored(stage, program)
    note = load_note(program)
    require(not program.one("load")["errors"], note)
    return note


@scenario("leader-killed", "the leader is killed and comes back, with retries", alone=True, seconds_max=180)
async def _leader_killed(stage: Stage) -> str:
    return await killed(stage, "load")


@scenario("leader-killed-orderly", "... with ordered consumption", alone=True, seconds_max=180)
async def _leader_killed_orderly(stage: Stage) -> str:
    return await killed(stage, "load-orderly")


@scenario("transfer", "leadership is transferred twice, with retries", alone=True, seconds_max=180)
async def _transfer(stage: Stage) -> str:
    return await _transferred(stage, "load")


@scenario("transfer-orderly", "... with ordered consumption", alone=True, seconds_max=180)
async def _transfer_orderly(stage: Stage) -> str:
    return await _transferred(stage, "load-orderly")
