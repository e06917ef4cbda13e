"""Broker settings with RocketMQ's names, for operators' tools (request codes 25 and 26)."""

from __future__ import annotations

from typing import Final

from mq.protocol.wire.fields import HeaderFields, wire

AUTO_CREATE_TOPIC: Final = "autoCreateTopicEnable"
RETENTION_HOURS: Final = "fileReservedTime"
DELETE_HOUR: Final = "deleteWhen"
AUTO_CREATE_GROUP: Final = "autoCreateSubscriptionGroup"
MESSAGES_PER_PULL: Final = "maxTransferCountOnMessageInMemory"

FORBIDDEN: Final = frozenset({"brokerConfigPath", "configBlackList"})
"""Settings that no broker allows to change."""


class BrokerProperties(
    HeaderFields,
    kw_only=True,
    rename=wire(
        broker_ip1="brokerIP1",
        use_tls="useTLS",
        enable_dledger_commit_log="enableDLegerCommitLog",
        dledger_group="dLegerGroup",
        dledger_self_id="dLegerSelfId",
        dledger_peers="dLegerPeers",
    ),
):
    """The settings that stock brokers have, too: times in milliseconds, sizes in bytes, ratios in percent.

    Those with a default have the same value on all our brokers.
    """

    auto_create_topic_enable: bool
    file_reserved_time: str
    """Hours."""
    delete_when: str
    """Two digits."""
    broker_cluster_name: str
    broker_name: str
    broker_id: int
    broker_role: str
    broker_ip1: str
    listen_port: int
    namesrv_addr: str
    store_path_root_dir: str
    store_path_commit_log: str
    mapped_file_size_commit_log: int
    flush_disk_type: str
    max_message_size: int
    default_topic_queue_nums: int
    auto_create_subscription_group: bool
    broker_permission: int = 6
    slave_read_enable: bool = True
    reject_transaction_message: bool
    transaction_time_out: int
    transaction_check_interval: int
    transaction_check_max: int
    filter_server_nums: int = 0
    message_delay_level: str
    timer_max_delay_sec: int
    timer_wheel_enable: bool = True
    recall_message_enable: bool = True
    msg_trace_topic_name: str
    store_reply_message_enable: bool
    trace_on: bool = True
    trace_topic_enable: bool = True
    use_tls: bool = False
    max_transfer_count_on_message_in_memory: int
    max_transfer_bytes_on_message_in_memory: int
    long_polling_enable: bool = True
    register_name_server_period: int
    disk_max_used_space_ratio: int
    enable_dledger_commit_log: bool = True
    dledger_group: str
    dledger_self_id: str
    dledger_peers: str
