"""Builds the settings that a client gets in answer to its own settings. Pure."""

from __future__ import annotations

from typing import Final

from mq.protocol.messages.delay import DELAY_LEVELS_MS
from mq.protocol.messages.records import BODY_BYTES_MAX
from mq.protocol.names import LITE_NAME_MAX
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.lite_attributes import lite_group
from mq.protocol.wire.fields import INT32_MAX
from mq.proxy.mapping.refusals import CodedError
from mq.proxy.mapping.times import duration
from mq.proxy.wire import messaging_pb2 as pb

PRODUCERS: Final = frozenset({pb.PRODUCER})
CONSUMERS: Final = frozenset({pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.PULL_CONSUMER})
LITE: Final = frozenset({pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER})

SEND_ATTEMPTS: Final = 3
RECEIVE_BATCH_MAX: Final = 32
LONG_POLLING_MS: Final = 20_000
_FIRST_RETRY_LEVEL: Final = 2
"""The level, from 0, of the delay before the first redelivery, as for consumers of the older protocol."""


def merge_settings(own: pb.Settings, group: SubscriptionGroupConfig | None) -> pb.Settings:
    """Return the settings for a client that sent `own`; `group` is the consumer group's configuration, if any.

    Raises CodedError for a kind of client that is not served.
    """
    kind = own.client_type
    settings = pb.Settings()
    settings.CopyFrom(own)
    settings.metric.Clear()
    settings.metric.on = False
    if kind in PRODUCERS or own.HasField("publishing"):
        settings.backoff_policy.CopyFrom(
            pb.RetryPolicy(
                max_attempts=SEND_ATTEMPTS,
                exponential_backoff=pb.ExponentialBackoff(initial=duration(10), max=duration(1000), multiplier=2.0),
            )
        )
        settings.publishing.max_body_size = BODY_BYTES_MAX
        settings.publishing.validate_message_type = True
        return settings
    if kind not in CONSUMERS | LITE and not own.HasField("subscription"):
        raise CodedError(pb.UNRECOGNIZED_CLIENT_TYPE, f"the client type {kind} is not one that this proxy serves")
    group = group or SubscriptionGroupConfig(group_name="")
    settings.subscription.fifo = group.consume_message_orderly or kind in LITE
    settings.subscription.receive_batch_size = RECEIVE_BATCH_MAX
    settings.subscription.long_polling_timeout.CopyFrom(duration(LONG_POLLING_MS))
    if kind in LITE:
        settings.subscription.lite_subscription_quota = min(lite_group(group.attributes).quota, INT32_MAX)
        settings.subscription.max_lite_topic_size = LITE_NAME_MAX
    settings.backoff_policy.CopyFrom(
        pb.RetryPolicy(
            max_attempts=max_attempts(group),
            customized_backoff=pb.CustomizedBackoff(next=map(duration, DELAY_LEVELS_MS[_FIRST_RETRY_LEVEL:])),
        )
    )
    return settings


def max_attempts(group: SubscriptionGroupConfig) -> int:
    """Return the number of deliveries after which a message becomes a dead letter."""
    return max(group.retry_max_times, 0) + 1
