"""Requests for a broker's settings and figures, and for its cleanup."""

from __future__ import annotations

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class GetBrokerRuntimeInfo(Request, tag=int(Code.GET_BROKER_RUNTIME_INFO)):
    """Request code 28: return the status figures of a broker."""


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
    """Request code 25: change the settings of a running broker to those in the body."""


class GetBrokerConfig(Request, tag=int(Code.GET_BROKER_CONFIG)):
    """Request code 26: return the settings of a broker."""


class VersionReply(Reply):
    """The response to request code 26: the version of the broker's configuration, as JSON."""

    version: str


class StatsExt(Ext):
    """The header of request code 315: the name and subject (topic, ``topic@group`` or cluster) of a figure."""

    stats_name: str
    stats_key: str


class ViewBrokerStatsData(Request, tag=int(Code.VIEW_BROKER_STATS_DATA)):
    """Request code 315: return a figure over the last minute, hour and day."""

    ext: StatsExt = msgspec.field(name="extFields")


class StatsOver(Body):
    """A figure over a period of time: its total, per second, and per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body, rename=wire()):
    """A figure over the last minute, hour and day (request code 315)."""

    stats_minute: StatsOver = msgspec.field(default_factory=StatsOver)
    stats_hour: StatsOver = msgspec.field(default_factory=StatsOver)
    stats_day: StatsOver = msgspec.field(default_factory=StatsOver)
