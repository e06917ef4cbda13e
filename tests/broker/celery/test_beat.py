"""Celery's beat that hands its schedule to the brokers of the test kit; and a worker that runs what they send."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, Service
from celery.contrib.testing.worker import start_worker
from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, crontab, schedule

import raftmq.celery
from mq.celery.beat import ScheduleScheduler, cron_of, push_schedules, rule_of
from mq.client import Admin, Cron, Every, Schedule
from mq.client.schedules import Schedules, ScheduleStatus
from mq.client.sync import SyncAdmin
from mq.testing import SyncKit, open_kit, running_kit
from tests.support.virtual_time import VIRTUAL_TIME
from tests.support.waiting import wait_until


class Sunset(BaseSchedule):  # type: ignore[misc]
    """As `celery.schedules.solar`, which needs a further library."""


MINUTE = dt.timedelta(minutes=1)
TOPIC = "celery%q_celery"


def application(kit: SyncKit, **entries: Any) -> Celery:
    app = Celery("shop", broker=f"raftmq://{kit.namesrv}", set_as_current=False)
    app.conf.update(
        result_expires=None, beat_schedule=entries, broker_connection_retry_on_startup=True, timezone="Europe/Vienna"
    )
    return app


def entry(**given: Any) -> dict[str, Any]:
    return {"task": "add", "schedule": MINUTE, "args": (1, 2)} | given


@contextmanager
def beat(app: Celery) -> Iterator[ScheduleScheduler]:
    """As `celery beat --scheduler raftmq.celery:ScheduleScheduler` after its first tick."""
    scheduler = Service(app, scheduler_cls="raftmq.celery:ScheduleScheduler").scheduler
    assert isinstance(scheduler, ScheduleScheduler)
    try:
        assert scheduler.tick() > 5
        yield scheduler
    finally:
        scheduler.close()
        app.close()


def names(admin: SyncAdmin) -> list[str]:
    return [each.schedule.name for each in admin.schedules.list()]


def test_brokers_send_each_tick_once_without_beat_or_with_several() -> None:
    with running_kit() as kit:
        for _ in range(3):
            with beat(application(kit, a=entry())), beat(application(kit, a=entry())):
                pass
        kit.advance(minutes=4)
        messages = kit.messages(TOPIC)
        assert len(messages) == 4
        assert len({each.properties["RAFTMQ_SCHEDULE_DUE"] for each in messages}) == 4


def test_each_tick_is_sent_once_when_the_clock_jumps_a_day() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        clock = kit._core._cluster.clock

        def dues(name: str = "") -> list[int]:
            return [
                int(each.properties["RAFTMQ_SCHEDULE_DUE"])
                for each in kit.messages(TOPIC)
                if each.properties["RAFTMQ_SCHEDULE"].endswith(name)
            ]

        def set_clock(days: int) -> None:
            """Only that of the machine: the time since it was started goes on. The brokers believe it afterwards."""
            clock._epoch_ms += days * 86_400_000
            kit.advance(seconds=0)  # they look at it
            clock.advance(61)
            kit.settle()

        with beat(application(kit, a=entry(), b=entry(schedule=crontab(minute="*/5")))):
            kit.advance(minutes=10)
            assert len(dues()) == 12
            set_clock(days=1)
            assert len(dues()) > 12
            kit.advance(minutes=10)
            assert 22 <= len(ahead := dues()) <= 60, "the ticks of the day between count as one"
            set_clock(days=-1)
            kit.advance(minutes=10)
            assert dues() == ahead, "they were sent"
            for name in ("a", "b"):
                admin.schedules.pause(f"celery/celery/shop/{name}")
                admin.schedules.resume(f"celery/celery/shop/{name}")
            kit.advance(minutes=10)
        for name in ("/a", "/b"):
            assert len(dues(name)) == len(set(dues(name)))
        assert len(dues()) >= len(ahead) + 12


def test_worker_runs_scheduled_tasks_with_one_id_per_tick() -> None:
    with running_kit() as kit:
        app = application(kit, a=entry(schedule=dt.timedelta(hours=1)))
        app.conf.task_ignore_result = True
        ran: list[Any] = []

        @app.task(name="add", bind=True, shared=False, expires=4 * 3600)
        def add(self: Any, a: int, b: int) -> None:
            ran.append((self.request.id, self.request.root_id, a + b, self.request.expires))

        with beat(app):
            kit.advance(hours=3)
        app = application(kit)
        app.tasks.register(add)
        # Celery would give the root logger the level of a worker, and later tests would wait for warnings in vain.
        level = logging.getLevelName(logging.getLogger().level)
        with start_worker(
            app, pool="solo", perform_ping_check=False, shutdown_timeout=20, logfile="/dev/null", loglevel=level
        ):
            wait_until(lambda: len(ran) >= 3)
        assert [total for _, _, total, _ in ran] == [3, 3, 3]
        ids = [task_id for task_id, *_ in ran]
        assert len(set(ids)) == 3
        assert all(uuid.UUID(each).int for each in ids)
        assert [root for _, root, *_ in ran] == ids
        dues = [int(each.properties["RAFTMQ_SCHEDULE_DUE"]) for each in kit.messages(TOPIC)]
        assert [dt.datetime.fromisoformat(at).timestamp() for *_, at in ran] == [due / 1000 + 4 * 3600 for due in dues]


def test_beat_deletes_removed_schedules_but_none_of_others() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        with beat(application(kit, a=entry(), b=entry())):
            pass
        other = application(kit, z=entry())
        other.main = "other"
        with beat(other):
            pass
        assert names(admin) == ["celery/celery/other/z", "celery/celery/shop/a", "celery/celery/shop/b"]
        kept = admin.schedules.get("celery/celery/shop/b")
        with beat(application(kit, b=entry(), c=entry(args=(5, 6)))):
            pass
        assert names(admin) == ["celery/celery/other/z", "celery/celery/shop/b", "celery/celery/shop/c"]
        assert admin.schedules.get("celery/celery/shop/b").version == kept.version, "it was not written again"


def test_beat_applies_a_change_and_keeps_a_pause() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        with beat(application(kit, a=entry())):
            pass
        admin.schedules.pause("celery/celery/shop/a")
        with beat(application(kit, a=entry(args=(7, 8)))):
            pass
        changed = admin.schedules.get("celery/celery/shop/a")
        assert (b"7, 8" in changed.schedule.body, changed.schedule.enabled) == (True, False)


def test_beat_sends_entries_added_while_running_to_the_broker() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin, beat(application(kit, a=entry())) as scheduler:
        scheduler.add(name="b", task="add", schedule=schedule(MINUTE), args=(1, 1))
        scheduler.tick()
        assert len(names(admin)) == 2


def test_deleted_schedule_returns_only_when_a_beat_restarts() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        with beat(application(kit, a=entry())) as scheduler:
            first = admin.schedules.get("celery/celery/shop/a")
            kit.advance(minutes=1)
            admin.schedules.delete("celery/celery/shop/a")
            scheduler.tick()
            assert names(admin) == []
            kit.advance(minutes=5)
            assert len(kit.messages(TOPIC)) == 1
            with beat(application(kit, a=entry())):
                assert admin.schedules.get("celery/celery/shop/a").version > first.version
            # The one that was there before writes nothing, and the new schedule begins with its own count.
            scheduler.tick()
        kit.advance(minutes=2)
        assert admin.schedules.get("celery/celery/shop/a").sent == 2
        assert len(kit.messages(TOPIC)) == 3


def test_beats_starting_together_create_each_schedule_once() -> None:
    entries = {name: entry() for name in ("a", "b", "c")}
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        pauses: list[float] = []

        def start() -> None:
            scheduler = Service(application(kit, **entries), scheduler_cls="raftmq.celery:ScheduleScheduler").scheduler
            pauses.append(scheduler.tick())
            scheduler.close()

        threads = [threading.Thread(target=start) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert min(pauses) > 5
        assert names(admin) == [f"celery/celery/shop/{name}" for name in "abc"]
        kit.advance(minutes=2)
        assert len(kit.messages(TOPIC)) == 6


class Overtaken:
    """Schedules as one beat sees them, between whose list and changes another beat writes its own."""

    def __init__(self, schedules: Schedules, other: Callable[[], Awaitable[object]]) -> None:
        self._schedules = schedules
        self._other: Callable[[], Awaitable[object]] | None = other

    async def list(self, **options: Any) -> Sequence[ScheduleStatus]:
        found = await self._schedules.list(**options)
        if (other := self._other) is not None:
            self._other = None
            await other()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedules, name)


@VIRTUAL_TIME
async def test_entries_of_two_beats_writing_concurrently_do_not_mix() -> None:
    """Both created theirs, and neither saw the other's: tasks of two versions ran for ever."""
    async with open_kit() as kit, Admin(kit.namesrv) as admin:
        await admin.create_topic("T")

        def wanted(name: str) -> dict[str, Schedule]:
            return {name: Schedule(name, "T", b"tick", Every(MINUTE), owner="shop")}

        overtaken = Overtaken(admin.schedules, lambda: push_schedules(admin.schedules, "shop", wanted("new")))
        await push_schedules(cast("Schedules", overtaken), "shop", wanted("old"))
        assert [each.schedule.name for each in await admin.schedules.list()] == ["old"]


def test_schedule_keeps_the_queue_priority_of_a_task_unknown_here() -> None:
    with running_kit() as kit:
        app = application(kit, a=entry(task="elsewhere", options={"queue": "high", "priority": 7}))
        app.conf.task_queue_max_priority = 9
        with beat(app):
            pass
        kit.advance(minutes=1)
        [message] = kit.messages("celery%q_high")
        assert (message.queue.queue_id, message.properties["kombu_priority"]) == (7, "7")


def test_beat_pushes_its_schedule_again_after_unreachable_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        scheduler = Service(application(kit, a=entry()), scheduler_cls="raftmq.celery:ScheduleScheduler").scheduler
        with monkeypatch.context() as patch:
            patch.setattr(scheduler, "push", lambda: (_ for _ in ()).throw(ConnectionError("no broker")))
            assert scheduler.tick() == 5
        assert names(admin) == []
        scheduler.tick()
        assert len(names(admin)) == 1
        scheduler.close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"schedule": Sunset()}, "brokers know crontab and intervals"),
        ({"schedule": 0.5}, "at least 1 s"),
        ({"options": {"countdown": 5}}, "option countdown"),
        ({"args": (BeatLazyFunc(lambda: 1),)}, "BeatLazyFunc"),
    ],
)
def test_beat_refuses_impossible_entries_by_name(given: dict[str, Any], why: str) -> None:
    app = Celery("shop", broker="raftmq://127.0.0.1:9", set_as_current=False)
    app.conf.beat_schedule = {"mine": entry(**given)}
    with pytest.raises(ImproperlyConfigured, match=f"'mine'.*{why}"):
        raftmq.celery.ScheduleScheduler(app)


@pytest.mark.parametrize(
    ("rule", "expression"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute=0, hour="*/6"), "0 */6 * * *"),
        (crontab(minute="*/15"), "*/15 * * * *"),
        (crontab(minute="5,35", hour="8-18", day_of_week="mon-fri"), "5,35 8-18 * * 1-5"),
        (crontab(minute=0, hour=0, day_of_month="2-30/3"), "0 0 2,5,8,11,14,17,20,23,26,29 * *"),
        (crontab(minute=0, hour="0,12", month_of_year="jan,jul", day_of_week="sun"), "0 0,12 * 1,7 0"),
    ],
)
def test_crontabs_as_cron_expressions(rule: Any, expression: str) -> None:
    assert cron_of(rule) == expression


def test_crontab_with_both_days_ticks_only_when_both_match() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.timezone = "Europe/Vienna"
    scheduler = ScheduleScheduler(app, lazy=True)
    second_tuesday = scheduler.Entry("a", "t", schedule=crontab(0, 8, "tue", "8-14"), app=app)
    assert rule_of(second_tuesday) == Cron("0 8 8-14 * 2", "Europe/Vienna", "both")
    rounded = scheduler.Entry("a", "t", schedule=schedule(MINUTE, relative=True), app=app)
    assert rule_of(rounded) == Every(MINUTE, dt.datetime(1970, 1, 1, tzinfo=dt.UTC))
