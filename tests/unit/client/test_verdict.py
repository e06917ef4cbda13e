"""What an answer to a send means. A wrong row here loses or doubles messages."""

from __future__ import annotations

import pytest

from mq.client.send_outcome import Retry, judge_send


@pytest.mark.parametrize(
    ("code", "remark", "stored", "retry"),
    [
        (0, None, "yes", Retry.NEVER),
        (10, "flush disk timeout", "yes", Retry.NEVER),
        (11, None, "yes", Retry.NEVER),
        (12, None, "yes", Retry.NEVER),
        (14, "not the leader", "no", Retry.UNTIL_TIMEOUT),
        (501, None, "no", Retry.UNTIL_TIMEOUT),
        (1500, None, "no", Retry.UNTIL_TIMEOUT),
        (215, None, "no", Retry.UNTIL_TIMEOUT),
        (2, "[REJECTREQUEST]system busy, start flow control for a while", "no", Retry.UNTIL_TIMEOUT),
        (2, "[TIMEOUT_CLEAN_QUEUE]broker busy", "no", Retry.UNTIL_TIMEOUT),
        (2, "[PC_SYNCHRONIZED]broker busy", "unknown", Retry.COUNTED),
        (2, None, "unknown", Retry.COUNTED),
        (1, "java.lang.NullPointerException", "unknown", Retry.COUNTED),
        (16, None, "no", Retry.ELSEWHERE),
        (17, None, "no", Retry.COUNTED),
        (204, None, "no", Retry.ELSEWHERE),
        (205, None, "no", Retry.ELSEWHERE),
        (13, "body too long", "no", Retry.NEVER),
        (3, None, "no", Retry.NEVER),
        (29, None, "no", Retry.NEVER),
        (9999, None, "no", Retry.NEVER),
    ],
)
def test_answer_codes_map_to_stored_and_retry(code: int, remark: str | None, stored: str, retry: Retry) -> None:
    assert judge_send(code, remark) == (stored, retry)
