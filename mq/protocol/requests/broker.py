"""A broker's settings and figures, and its cleaning."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class GetBrokerRuntimeInfo(Request, tag=int(Code.GET_BROKER_RUNTIME_INFO)):
    """28: status figures of a broker."""


class KVTable(Body):
    """Names and values (request codes 28 and 219)."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class CleanExpiredConsumequeue(Request, tag=int(Code.CLEAN_EXPIRED_CONSUMEQUEUE)):
    """Request code 306: remove queue entries of deleted messages."""


class CleanUnusedTopic(Request, tag=int(Code.CLEAN_UNUSED_TOPIC)):
    """Request code 316: remove queues of topics that do not exist."""


class DeleteExpiredCommitlog(Request, tag=int(Code.DELETE_EXPIRED_COMMITLOG)):
    """Request code 329: delete expired log files."""


class UpdateBrokerConfig(Request, tag=int(Code.UPDATE_BROKER_CONFIG)):
    """25: change settings of a running broker; they are in the body."""


class GetBrokerConfig(Request, tag=int(Code.GET_BROKER_CONFIG)):
    """26: the settings of a broker."""


class VersionReply(Reply):
    """The version of a broker's configuration (26), as JSON."""

    version: str


class StatsExt(Ext):
    """The name of the figure, and its subject: a topic, ``topic@group`` or a cluster."""

    stats_name: str
    stats_key: str


class ViewBrokerStatsData(Request, tag=int(Code.VIEW_BROKER_STATS_DATA)):
    """Request code 315: return a figure over the last minute, hour and day."""

    ext: StatsExt = msgspec.field(name="extFields")


class StatsOver(Body):
    """A figure over a period: total, per second, and per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body, rename=wire()):
    """A figure over the last minute, hour and day (request code 315)."""

    stats_minute: StatsOver = msgspec.field(default_factory=StatsOver)
    stats_hour: StatsOver = msgspec.field(default_factory=StatsOver)
    stats_day: StatsOver = msgspec.field(default_factory=StatsOver)
