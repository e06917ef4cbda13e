"""The programs that a filter server has in memory, and how much of a processor a group may use."""

from __future__ import annotations

from typing import NoReturn

import trio

from mq.filter.programs import ProgramName, name_of
from mq.filter.wasm import WasmLimits
from mq.filter_server.group_budget import GroupBudget
from mq.filter_server.loaded_programs import Programs
from mq.filter_server.wasm_sandbox import Sandbox, WasmFilter
from tests.support.filter_servers import EVERYTHING


class CountingSandbox(Sandbox):
    loads = 0

    def load(self, content: bytes) -> WasmFilter:
        self.loads += 1
        return super().load(content)


async def not_at_the_broker(group: str, topic: str, name: ProgramName) -> NoReturn:
    raise AssertionError("uploads are not fetched")


async def no_current_one(group: str, topic: str) -> NoReturn:
    raise AssertionError("uploads are not asked for")


async def test_program_that_is_uploaded_for_each_queue_is_compiled_once() -> None:
    """Compiling a large module takes seconds, and others wait for it."""
    sandbox = CountingSandbox(WasmLimits())
    programs = Programs(sandbox, not_at_the_broker, no_current_one, programs_max=10, group_share=1.0)
    name = name_of("wasm", EVERYTHING)
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(programs.add, "G", "T", name, EVERYTHING)
    assert sandbox.loads == 1
    assert len(programs) == 1


def test_group_that_uses_less_than_its_share_does_not_wait() -> None:
    budget = GroupBudget(0.5, now=0.0)
    for second in range(100):
        assert budget.wait_seconds(second) == 0
        budget.spend(0.5, second)
    assert budget.wait_seconds(100.0) == 0


def test_group_above_its_share_waits() -> None:
    budget = GroupBudget(0.5, now=0.0)
    budget.spend(1.5, 0.0)
    assert budget.wait_seconds(0.0) == 2.0
    assert budget.wait_seconds(1.0) == 1.0
    assert budget.wait_seconds(2.0) == 0


def test_group_budget_saves_at_most_one_second() -> None:
    budget = GroupBudget(0.5, now=0.0)
    budget.spend(1.0, 1000.0)
    assert budget.wait_seconds(1000.0) == 1.0
