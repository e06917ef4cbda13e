"""Our own requests 9012 to 9016 for schedules, and the definition of a schedule, which is replicated state, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.errors import BodyError
from mq.protocol.wire.fields import I32, I64
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request

ANY_VERSION = -1
NO_VERSION = 0
"""There must be no schedule of that name."""
CatchUp = Literal["skip", "last", "all"]
CATCH_UPS: Final[tuple[CatchUp, ...]] = ("skip", "last", "all")
CronDays = Literal["either", "both"]
NAME_BYTES_MAX: Final = 255
BODY_BYTES_MAX: Final = 64 * 1024
"""Body of a schedule's message: it is in the memory of each replica, and in every snapshot."""
PROPERTIES_BYTES_MAX: Final = 16 * 1024
"""Keys, tags and properties of a schedule's message."""
CRON_LENGTH_MAX: Final = 200
ZONE_LENGTH_MAX: Final = 64
EVERY_MS_MIN: Final = 1000
TIME_MS_MAX: Final = 253_402_300_799_000
"""The end of the year 9999."""
CATCH_UP_MS_DEFAULT: Final = 3_600_000
SCHEDULE: Final = "RAFTMQ_SCHEDULE"
"""Property of a schedule's messages: its name."""
DUE_MS: Final = "RAFTMQ_SCHEDULE_DUE"
"""Property of a schedule's messages: the time of the tick, in milliseconds since 1970."""


class PutScheduleExt(Ext):
    """The header of 9012: the version that the schedule must have; `ANY_VERSION`; `NO_VERSION`: it must not exist."""

    expected_version: I64 = ANY_VERSION


class PutSchedule(Request, tag=int(Code.PUT_SCHEDULE)):
    """Request code 9012, our own: create or replace the schedule in the body."""

    ext: PutScheduleExt = msgspec.field(name="extFields", default_factory=PutScheduleExt)


class ScheduleChanged(Reply):
    """The response to 9012 and 9015: the new version of the schedule."""

    version: I64


class ScheduleDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message, and the rule by which a broker sends it: ``cron``, ``every_ms`` or ``at_ms``.

    Times are milliseconds since 1970, 0 for none. Ticks are at ``start_ms`` or later, and before ``end_ms``.
    """

    name: str
    topic: str
    body: bytes = b""
    tags: str = ""
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    queue_id: int = -1
    """-1: one that depends on the name, the same for all ticks."""
    cron: str = ""
    time_zone: str = "UTC"
    cron_days: CronDays = "either"
    """Of a day of the month and a day of the week that are both restricted, which must match."""
    every_ms: int = 0
    anchor_ms: int | None = None
    """A time from which intervals are counted; None: the start, or the time of creation."""
    at_ms: int = 0
    start_ms: int = 0
    end_ms: int = 0
    enabled: bool = True
    catch_up: CatchUp = "last"
    catch_up_ms: int = CATCH_UP_MS_DEFAULT
    """With ``all``: a tick that is later than this is not sent."""
    owner: str = ""
    """The application that keeps it up to date, such as one with Celery; empty for none."""

    def encode(self) -> bytes:
        """Encode the definition as JSON."""
        return msgspec.json.encode(self, order="sorted")

    def rule(self) -> tuple[object, ...]:
        """Return the values that decide when the schedule ticks."""
        return self.cron, self.time_zone, self.cron_days, self.every_ms, self.anchor_ms, self.at_ms

    @property
    def nbytes(self) -> int:
        """The size that counts against the broker group's limit: about the bytes of the schedule in a snapshot."""
        texts = (self.name, self.topic, self.tags, self.cron, self.time_zone, self.owner, *self.keys)
        pairs = sum(len(name) + len(value) for name, value in self.properties.items())
        return 200 + len(self.body) + sum(map(len, texts)) + pairs


def decode_definition(body: bytes | memoryview) -> ScheduleDefinition:
    """Decode the body of 9012. Raises BodyError for a field that this version does not know and would lose."""
    try:
        return msgspec.json.decode(body, type=ScheduleDefinition)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BodyError(f"body of {len(body)} bytes is not a schedule: {error}") from error


class DeleteScheduleExt(Ext):
    """The header of 9013: a schedule, and the version that it must have."""

    name: str
    expected_version: I64 = ANY_VERSION


class DeleteSchedule(Request, tag=int(Code.DELETE_SCHEDULE)):
    """Request code 9013, our own: delete a schedule."""

    ext: DeleteScheduleExt = msgspec.field(name="extFields")


class ListSchedulesExt(Ext):
    """The header of 9014: the schedule ``name``, or the schedules after ``after`` by name, of ``owner`` if given."""

    name: str = ""
    after: str = ""
    owner: str = ""
    bodies: bool = False
    ticks: I32 = 3


class ListSchedules(Request, tag=int(Code.LIST_SCHEDULES)):
    """Request code 9014, our own: return schedules, each with its next ``ticks``."""

    ext: ListSchedulesExt = msgspec.field(name="extFields", default_factory=ListSchedulesExt)


class SwitchScheduleExt(Ext):
    """The header of 9015: a schedule, and whether it shall tick."""

    name: str
    enabled: bool


class SwitchSchedule(Request, tag=int(Code.SWITCH_SCHEDULE)):
    """Request code 9015, our own: pause or resume a schedule."""

    ext: SwitchScheduleExt = msgspec.field(name="extFields")


class TriggerScheduleExt(Ext):
    """The header of 9016: a schedule."""

    name: str


class TriggerSchedule(Request, tag=int(Code.TRIGGER_SCHEDULE)):
    """Request code 9016, our own: send the message of a schedule now, independently of its ticks."""

    ext: TriggerScheduleExt = msgspec.field(name="extFields")


class ScheduleInfo(Body, omit_defaults=True):
    """A schedule with its state, as a broker returns it.

    ``version`` changes with each change of the definition. Everything due up to ``settled_ms`` is sent or skipped.
    ``error`` says why this broker cannot compute its ticks.
    """

    definition: ScheduleDefinition
    version: int
    settled_ms: int = 0
    sent: int = 0
    skipped: int = 0
    last_due_ms: int = 0
    """The tick that was sent last; 0 before the first one."""
    next_ms: Sequence[int] = ()
    error: str = ""


class ScheduleList(Body):
    """A page of schedules in order of names. ``more``: others follow. Message bodies are left out unless requested."""

    schedules: Sequence[ScheduleInfo] = ()
    more: bool = False
