"""The scenarios of special messages: delay, transactions, POP, request-reply, trace.

``SCENARIOS`` holds those of everyday messages as well.
"""

from __future__ import annotations

from collections import Counter

import trio

from mq.client import Admin
from tests.interop.scenarios import SCENARIOS, bodies, exactly_once, killed, scenario
from tests.interop.stage import Event, Program, Stage, Unmet, require

__all__ = ["SCENARIOS"]

LATE_MS_MAX = 5000.0
"""Programs and cluster share a small machine."""

TRACE_SECONDS_MAX = 20

HEARTBEAT_SECONDS = 30.0
"""A restarted broker does not know where to send answers until it hears of a producer again."""


def in_time(program: Program) -> str:
    """Raises Unmet if a message came before its time or long after it."""
    seen = {event["body"]: event["at"] for event in program.of("received")}
    early = {e["body"]: e["due"] - seen[e["body"]] for e in program.of("sent") if seen[e["body"]] < e["due"]}
    require(not early, f"too early by ms: {early}")
    late = {e["body"]: seen[e["body"]] - e["latest"] for e in program.of("sent")}
    require(max(late.values()) <= LATE_MS_MAX, f"too late by ms: {late}")
    return f"seen at most {max(0, *late.values())} ms late"


@scenario("delays", "delay levels")
async def _delays(stage: Stage) -> str:
    program = await stage.play("delays")
    exactly_once(program)
    return in_time(program)


@scenario("timers", "delivery at any time")
async def _timers(stage: Stage) -> str:
    program = await stage.play("timers")
    exactly_once(program)
    refused = program.one("refused")
    require(refused["code"] == 13, refused)
    return f"{in_time(program)}; 41 days: {refused['why']}"


@scenario("recall", "a waiting message is called back")
async def _recall(stage: Stage) -> str:
    program = await stage.play("recall")
    ids = {event["body"]: event["id"] for event in program.of("sent")}
    recalled = {event["body"]: event["id"] for event in program.of("recalled")}
    require(recalled == {body: ids[body] for body in ("r-0", "r-2", "r-4")}, f"sent {ids}, called back {recalled}")
    got = sorted(bodies(program.of("received")))
    require(got == ["r-1", "r-3", "r-5"], f"received {got}")
    told = {event["what"]: event.get("code", event.get("value")) for event in program.of("recall")}
    require(told.keys() == {"again", "forged", "delivered"}, told)
    return ", ".join(f"{what}: {answer}" for what, answer in told.items())


@scenario("transactions", "transactions with check-back")
async def _transactions(stage: Stage) -> str:
    program = await stage.play("transactions")
    sent = bodies(program.of("sent"))
    wanted = sorted(body for body in sent if not body.endswith("rollback"))
    got = sorted(bodies(program.of("received")))
    require(got == wanted, f"wanted {wanted}, got {got}")
    checks = Counter(bodies(program.of("checked")))
    late = {body: 2 if body.endswith("twice") else 1 for body in sent if body.endswith(("orphan", "twice"))}
    late |= {body: 1 for body in sent if "-late-" in body}
    require(checks == late, f"checks wanted {late}, made {dict(checks)}")
    ids = {event["body"]: event["id"] for event in program.of("sent")}
    for event in (*program.of("checked"), *program.of("received")):
        require(event["id"] == ids[event["body"]], f"sent as {ids[event['body']]}: {event}")
        require(event["topic"] == stage.name, event)
    return f"{len(got)} visible, {checks.total()} checks"


@scenario("pop", "POP consumers: two share, some fail, some take too long, one leaves", seconds_max=180)
async def _pop(stage: Stage) -> str:
    await stage.order_pop(f"{stage.name}-group")
    program = await stage.play("pop")
    require(not program.of("unordered"), program.of("unordered"))
    times: dict[str, list[int]] = {}
    for event in program.of("received"):
        times.setdefault(event["body"], []).append(event["times"])
    wanted = {body: [0] if body.startswith("good") else [0, 1] for body in bodies(program.of("sent"))}
    # A client drops what it has not begun with by the time at which others may see it; it comes again.
    late = {body for body in wanted if times.get(body) == [1]}
    wrong = {body: (times.get(body), wanted[body]) for body in wanted.keys() - late if times.get(body) != wanted[body]}
    require(not wrong and times.keys() == wanted.keys(), f"deliveries, got and wanted: {wrong}")
    by = Counter(event["by"] for event in program.of("received"))
    require(by["a"] > 0 and by["b"] > 0, dict(by))
    # A consumer whose request mode has not changed would have pulled, and noted retries otherwise.
    retry = await stage.count(f"%RETRY%{stage.name}-group_{stage.name}")
    again = sum(not body.startswith("good") or body in late for body in wanted)
    require(retry == again, f"{retry} messages in the retry topic, not {again}")
    return ", ".join(f"{name} {count}" for name, count in sorted(by.items())) + f"; {len(late)} not begun in time"


@scenario("request-reply", "requests that consumers answer")
async def _request_reply(stage: Stage) -> str:
    program = await stage.play("request-reply")
    answers = {event["body"]: event["answer"] for event in program.of("answered")}
    wanted = {body: f"re: {body}" for body in bodies(program.of("sent")) if body != "nobody"}
    require(answers == wanted, f"wanted {wanted}, got {answers}; {program.of('unanswered')}")
    unanswered = bodies(program.of("unanswered"))
    require(unanswered == ["nobody"], f"without an answer: {unanswered}")
    return f"{len(answers)} answers"


@scenario("trace", "message trace")
async def _trace(stage: Stage) -> str:
    program = await stage.play("trace")
    for event in program.of("trace"):
        lines = event["lines"]
        sent = [line for line in lines if line.startswith(f"Pub {stage.name}-producer ")]
        consumed = [line for line in lines if line.startswith(f"Sub {stage.name}-group ")]
        wanted = ["failed", "success"] if event["body"] == "m-1" else ["success"]
        require(len(sent) == 1 and sent[0].endswith("success"), f"{event['body']}: {lines}")
        require(sorted(line.split()[-1] for line in consumed) == wanted, f"{event['body']}: {lines}")
    for event in program.of("sent"):
        await _is_traced(stage, event)
    return "read from outside" + (" and by mqadmin" if program.of("trace") else "")


async def _is_traced(stage: Stage, sent: Event) -> None:
    """Raises Unmet unless our own client finds who sent a message and how often it was consumed."""
    wanted = [False, True] if sent["body"] == "m-1" else [True]
    found: object = None
    async with Admin(stage.servers.namesrv) as admin:
        for _ in range(TRACE_SECONDS_MAX):
            story = await admin.trace(sent["id"])
            senders = [each.group for each in story.sent if each.topic == stage.name]
            handled = [(each.begun.group, each.ended is not None and each.ended.success) for each in story.handled]
            if (senders, handled) == ([f"{stage.name}-producer"], [(f"{stage.name}-group", ok) for ok in wanted]):
                return
            found = senders, handled, story.unreadable
            await trio.sleep(1)
    raise Unmet(f"trace of {sent['body']}: {found}")


@scenario("delays-killed", "the leader is killed and comes back: delay levels", alone=True, seconds_max=180)
async def _delays_killed(stage: Stage) -> str:
    return await killed(stage, "load-delays")


@scenario("timers-killed", "... delivery at any time and recall", alone=True, seconds_max=180)
async def _timers_killed(stage: Stage) -> str:
    return await killed(stage, "load-timers")


@scenario("transactions-killed", "... transactions", alone=True, seconds_max=180)
async def _transactions_killed(stage: Stage) -> str:
    return await killed(stage, "load-transactions")


@scenario("pop-killed", "... POP", alone=True, seconds_max=180)
async def _pop_killed(stage: Stage) -> str:
    await stage.order_pop(f"{stage.name}-group")
    return await killed(stage, "load-pop")


@scenario("requests-killed", "... request-reply", alone=True, seconds_max=180)
async def _requests_killed(stage: Stage) -> str:
    return await killed(stage, "load-requests", recovery_seconds=HEARTBEAT_SECONDS)


@scenario("trace-killed", "... message trace", alone=True, seconds_max=180)
async def _trace_killed(stage: Stage) -> str:
    return await killed(stage, "load-trace")
