"""What a consumer says of itself when a tool asks."""

from __future__ import annotations

from mq.client.consume.diagnostics import running_info
from mq.protocol.wire import fastjson


def test_tools_reckon_with_the_time_of_the_start() -> None:
    properties = fastjson.parse(running_info([], [], ordered=True, started_ms=1_700_000_000_000))["properties"]
    assert properties == {
        "PROP_CLIENT_VERSION": "V4_9_8",
        "PROP_CONSUME_ORDERLY": "true",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMER_START_TIMESTAMP": "1700000000000",
    }, "all are needed: stock tools fail on a missing number"
