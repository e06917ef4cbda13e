"""A member of a group is removed while it works, stays out when another replica leads, and is let in again."""

from __future__ import annotations

from functools import partial

import trio

from mq.client import Admin, MessageQueue
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from tests.interop.clients import GRPC
from tests.interop.grpc_scenarios import SCENARIOS
from tests.interop.scenarios import load_note, scenario
from tests.interop.stage import QUEUES, Stage, require

__all__ = ["SCENARIOS"]

STILL_SECONDS = 3.0
"""Time in which a consumer of messages that come all the time would have moved its offsets."""
LEAVES_SECONDS_MAX = 60.0
KEEP_OUT_SECONDS = 600.0


async def _progress(admin: Admin, stage: Stage, group: str) -> int:
    queues = [MessageQueue(stage.name, stage.servers.group, queue_id) for queue_id in range(QUEUES)]
    return sum([(await admin.group_offset(group, queue)) or 0 for queue in queues])


async def _stands_still(admin: Admin, stage: Stage, group: str) -> int:
    """Wait until the offsets of the group do not move for a while; what they are."""
    known = await _progress(admin, stage, group)
    with trio.fail_after(LEAVES_SECONDS_MAX):
        while True:
            await trio.sleep(STILL_SECONDS)
            found = await _progress(admin, stage, group)
            if found == known:
                return found
            known = found


async def removed(stage: Stage, program_scenario: str) -> str:
    """The only member of a group under load is removed; what comes meanwhile arrives when it is let in."""
    group = f"{stage.name}-group"
    async with Admin(stage.servers.namesrv) as admin, stage.playing(program_scenario) as program:
        await program.wait_for("running")
        members = [each.client_id for each in await admin.group_members(group)]
        require(len(members) == 1, f"the members are {members}")
        removal = await admin.removed_members.remove(group, members[0], keep_out=KEEP_OUT_SECONDS, reason="a test")
        require(removal.was_member, f"{members[0]} is no member")
        began = trio.current_time()
        stood_at = await _stands_still(admin, stage, group)
        left = trio.current_time() - began - STILL_SECONDS
        leader = await stage.cluster.leader()
        stage.cluster.kill(leader)
        await stage.cluster.start_all()
        await stage.cluster.wait_ready()
        await stage.transfer()
        kept = [each.client_id for each in await admin.removed_members.kept_out(group)]
        require(kept == members, f"kept out after changes of leader: {kept}")
        await trio.sleep(STILL_SECONDS)
        now_at = await _progress(admin, stage, group)
        require(now_at == stood_at, f"consumed up to {stood_at}, and {now_at} after changes of leader")
        await admin.removed_members.let_in(group, members[0])
        await program.say("stop")
        await program.wait_for("done")
    return f"nothing more after {left:.0f} s; then {load_note(program)}"


@scenario("removed", "a member is removed, leaders change, it is let in again", alone=True, seconds_max=240)
async def _removed(stage: Stage) -> str:
    return await removed(stage, "load")


@partial(scenario, protocol=GRPC)(
    "grpc-removed", "a member is removed, leaders change, it is let in again", alone=True, seconds_max=240
)
async def _removed_grpc(stage: Stage) -> str:
    async with Admin(stage.servers.namesrv) as admin:
        await admin.put_consumer_group(SubscriptionGroupConfig(group_name=f"{stage.name}-group", retry_max_times=16))
    return await removed(stage, "grpc-load")
