"""Typed requests: our own 9012 to 9016, for schedules. See `mq.protocol.requests`."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.replies import Reply
from mq.protocol.requests import Ext, Request
from mq.protocol.wire_names import I32, I64

ANY_VERSION = -1
NO_VERSION = 0
"""There must be no schedule of that name."""


class PutScheduleExt(Ext):
    """The version that the schedule must have: `ANY_VERSION`, or `NO_VERSION` for one that must not exist."""

    expected_version: I64 = ANY_VERSION


class PutSchedule(Request, tag=int(Code.PUT_SCHEDULE)):
    """9012, our own: create or replace the schedule in the body."""

    ext: PutScheduleExt = msgspec.field(name="extFields", default_factory=PutScheduleExt)


class ScheduleChanged(Reply):
    """The schedule's version from now on (9012 and 9015)."""

    version: I64


class DeleteScheduleExt(Ext):
    """A schedule, and the version that it must have."""

    name: str
    expected_version: I64 = ANY_VERSION


class DeleteSchedule(Request, tag=int(Code.DELETE_SCHEDULE)):
    """9013, our own."""

    ext: DeleteScheduleExt = msgspec.field(name="extFields")


class ListSchedulesExt(Ext):
    """``name`` for one schedule, else those behind ``after`` in the order of names, of ``owner`` if that is given."""

    name: str = ""
    after: str = ""
    owner: str = ""
    bodies: bool = False
    ticks: I32 = 3


class ListSchedules(Request, tag=int(Code.LIST_SCHEDULES)):
    """9014, our own: show schedules with their next ``ticks``."""

    ext: ListSchedulesExt = msgspec.field(name="extFields", default_factory=ListSchedulesExt)


class SwitchScheduleExt(Ext):
    """A schedule, and whether it is to tick."""

    name: str
    enabled: bool


class SwitchSchedule(Request, tag=int(Code.SWITCH_SCHEDULE)):
    """9015, our own: pause or resume a schedule."""

    ext: SwitchScheduleExt = msgspec.field(name="extFields")


class TriggerScheduleExt(Ext):
    """A schedule."""

    name: str


class TriggerSchedule(Request, tag=int(Code.TRIGGER_SCHEDULE)):
    """9016, our own: send the message of a schedule now, beside its ticks."""

    ext: TriggerScheduleExt = msgspec.field(name="extFields")
