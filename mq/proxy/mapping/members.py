"""Converts clients to members of consumer groups, in the form for brokers. Pure."""

from __future__ import annotations

from typing import Final

from mq.filter.subscription import ALL_TAGS, SQL92, TAG
from mq.protocol.requests.clients import ClientBehindProxy
from mq.proxy.callers import Caller
from mq.proxy.mapping.names import group_of, topic_of
from mq.proxy.mapping.refusals import CodedError
from mq.proxy.wire import messaging_pb2 as pb

_LANGUAGES: Final = {
    pb.JAVA: "JAVA",
    pb.CPP: "CPP",
    pb.DOT_NET: "DOTNET",
    pb.GOLANG: "GO",
    pb.RUST: "RUST",
    pb.PYTHON: "PYTHON",
    pb.PHP: "PHP",
    pb.NODE_JS: "NODE_JS",
    pb.RUBY: "RUBY",
}
SUBSCRIPTIONS_LENGTH_MAX: Final = 4_096
"""Characters of the topics and expressions of a member; brokers leave out one with more."""
_PULLING: Final = frozenset({pb.SIMPLE_CONSUMER, pb.PULL_CONSUMER, pb.LITE_SIMPLE_CONSUMER})


def member_of(settings: pb.Settings, caller: Caller) -> ClientBehindProxy:
    """Convert a consumer with these settings to a group member, in the form for brokers.

    Raises CodedError for invalid names, and for subscriptions that are too long.
    """
    subscriptions = [
        (
            topic_of(each.topic),
            each.expression.expression or ALL_TAGS,
            SQL92 if each.expression.type == pb.SQL else TAG,
        )
        for each in settings.subscription.subscriptions
    ]
    length = sum(len(text) for row in subscriptions for text in row)
    if length > SUBSCRIPTIONS_LENGTH_MAX:
        text = f"subscriptions of {length} characters; brokers show at most {SUBSCRIPTIONS_LENGTH_MAX}"
        raise CodedError(pb.BAD_REQUEST, text)
    return ClientBehindProxy(
        client_id=caller.client_id,
        group=group_of(settings.subscription.group),
        address=caller.peer,
        language=_LANGUAGES.get(settings.user_agent.language, "OTHER"),
        consume_type="CONSUME_ACTIVELY" if settings.client_type in _PULLING else "CONSUME_PASSIVELY",
        subscriptions=sorted(subscriptions),
    )
