"""Functions and methods of production that only libraries call, by the names that these want."""

CALLED_BY_KOMBU = (
    "basic_consume basic_publish basic_qos default_connection_params driver_version establish_connection get_table "
    "prepare_queue_arguments _purge queue_bind queue_delete queue_unbind register_with_event_loop verify_connection"
)
CALLED_BY_LIBRARIES = frozenset(
    {
        *CALLED_BY_KOMBU.split(),
        "SourcesHook",  # hatch
        "getDefaultReadLimit",  # Spark's data source API
        "initialOffset",
        "kick",  # Taskiq
        "log_message",  # http.server
        "prepareForTriggerAvailableNow",
        "pytest_configure",
        "reportLatestOffset",
        "settings_customise_sources",  # pydantic
        "setup_schedule",  # Celery's beat
        "streamReader",
        "streamWriter",
        "_fake_connect",  # FastStream
        "_make_response_publisher",
        "as_publish_command",
        "channel_labels",
        "create_publisher_fake_subscriber",
        "get_log_context",
        "get_schema",
        "publish_batch",
        "register_subscriber",
    }
)
