"""The synchronous administration."""

from __future__ import annotations

from collections.abc import Sequence

from mq.client.admin import Admin
from mq.client.events import OnEvent
from mq.client.net.client_core import RemotingSettings
from mq.client.sync.facade import Facade, apart, waits

__all__ = ["SyncAdmin"]


class SyncAdmin(Facade[Admin], of=Admin):
    """`Admin` for threads; takes the same arguments."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        ping: bool = False,
        on_event: OnEvent | None = None,
        remoting: RemotingSettings | None = None,
    ) -> None:
        super().__init__(apart(Admin, namesrv, ping=ping, on_event=on_event, remoting=remoting))

    cluster_info = waits(Admin.cluster_info)
    broker_runtime = waits(Admin.broker_runtime)
    manage_group = waits(Admin.manage_group)
    create_topic = waits(Admin.create_topic)
    delete_topic = waits(Admin.delete_topic)
    topics = waits(Admin.topics)
    route = waits(Admin.route)
    topic_config = waits(Admin.topic_config)
    topic_identities = waits(Admin.topic_identities)
    topic_stats = waits(Admin.topic_stats)
    figure = waits(Admin.figure)
    message_by_id = waits(Admin.message_by_id)
    messages_by_key = waits(Admin.messages_by_key)
    trace = waits(Admin.trace)
    consumer_groups = waits(Admin.consumer_groups)
    put_consumer_group = waits(Admin.put_consumer_group)
    delete_consumer_group = waits(Admin.delete_consumer_group)
    group_progress = waits(Admin.group_progress)
    reset_group = waits(Admin.reset_group)
    skip_message = waits(Admin.skip_message)
    min_offset = waits(Admin.min_offset)
    max_offset = waits(Admin.max_offset)
    offset = waits(Admin.offset)
    consumers = waits(Admin.consumers)
    group_offset = waits(Admin.group_offset)
