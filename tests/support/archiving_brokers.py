"""Brokers that archive at once, and delete locally what is archived."""

from __future__ import annotations

from typing import Any

from tests.support.object_storage import BUCKET, ObjectStorage
from tests.support.running_broker import limited
from tests.support.short_logs import MIB, SMALL

LIMITS = limited(
    archive={"look_seconds": 0.05, "retry_seconds": 0.05, "retry_seconds_max": 0.2, "check_seconds": 0.2},
    upkeep={"raise_level_seconds": 0.01},
)


def settings(storage: ObjectStorage, **given: Any) -> dict[str, Any]:
    return (
        SMALL
        | {
            "retention_bytes": None,
            "archive_url": f"s3://{BUCKET}/broker-a",
            "archive_endpoint_url": storage.url,
            "archive_bytes_per_second": 0,
            "local_retention_bytes": MIB,
        }
        | given
    )
