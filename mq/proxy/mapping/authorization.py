"""Who a client says it is, in the metadata of a call. Pure.

It signs the time alone: whoever sees the metadata can repeat them until they are too old.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Final

from mq.protocol.access.acting import ActsFor
from mq.proxy.mapping.refusals import Refused
from mq.proxy.wire import messaging_pb2 as pb

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
_ALGORITHM: Final = "MQv2-HMAC-SHA1"
_HEADER: Final = re.compile(
    rf"{_ALGORITHM}\s+Credential=([^,/\s]+)[^,]*,\s*SignedHeaders={DATE_TIME},\s*Signature=([0-9A-Fa-f]{{40}})",
    re.IGNORECASE,
)
_TIME_LENGTH_MAX: Final = 40


def user_of(metadata: Mapping[str, str], address: str, now_ms: int, *, age_ms_max: int) -> ActsFor:
    """The user of a call from `address`, with a signature that is still to be checked. Raises Refused."""
    header, time = metadata.get(AUTHORIZATION, ""), metadata.get(DATE_TIME, "")
    if not header:
        raise Refused(pb.UNAUTHORIZED, "calls must be signed: give the client an access key and a secret key")
    found = _HEADER.fullmatch(header.strip())
    if found is None:
        raise Refused(pb.UNAUTHORIZED, f"the {AUTHORIZATION} header is not {_ALGORITHM} over {DATE_TIME}")
    age_ms = now_ms - _time_ms(time)
    if abs(age_ms) > age_ms_max:
        raise Refused(
            pb.UNAUTHORIZED,
            f"the call was signed {_distance(age_ms)}; at most {age_ms_max / 1000:.0f} s are allowed: "
            "is the clock of the client right?",
        )
    return ActsFor(found[1], time, found[2], address)


def _distance(age_ms: int) -> str:
    return f"{abs(age_ms) / 1000:.0f} s {'ago' if age_ms > 0 else 'from now, by the clock of the client'}"


def _time_ms(text: str) -> int:
    """Of a time as clients write it: most as 20260102T030405Z, the one for Rust as RFC 3339 has it. Raises Refused."""
    try:
        if len(text) > _TIME_LENGTH_MAX or "T" not in text:
            raise ValueError("no time of the day")
        signed_at = dt.datetime.fromisoformat(text)
        if signed_at.tzinfo is None:
            raise ValueError("no zone")
        return int(signed_at.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Refused(
            pb.UNAUTHORIZED, f"{DATE_TIME} is {text[:_TIME_LENGTH_MAX]!r}, not a time such as 20260102T030405Z"
        ) from None
