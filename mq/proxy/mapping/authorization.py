"""Parses the credentials in the metadata of a call. Pure.

It signs the time alone: whoever sees the metadata can repeat them until they are too old. The clients for Java, Go and
Python write the time of their zone as if it was UTC: 20260102T110405Z at 03:04:05 UTC in Shanghai.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mq.protocol.access.acting import ActsFor
from mq.proxy.mapping.refusals import CodedError
from mq.proxy.wire import messaging_pb2 as pb

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
_ALGORITHM: Final = "MQv2-HMAC-SHA1"
_HEADER: Final = re.compile(
    rf"{_ALGORITHM}\s+Credential=([^,/\s]+)[^,]*,\s*SignedHeaders={DATE_TIME},\s*Signature=([0-9A-Fa-f]{{40}})",
    re.IGNORECASE,
)
_TIME_LENGTH_MAX: Final = 40
_ZONE_STEP_MS: Final = 15 * 60_000
"""All time zones differ from UTC by a multiple of it."""
_ZONE_MS_FROM: Final = 3_600_000
_ZONE_MS_MIN: Final = -12 * 3_600_000
_ZONE_MS_MAX: Final = 14 * 3_600_000


@dataclass(frozen=True, slots=True)
class AllowedTimes:
    """The range of times that signatures may have.

    Attributes:
        age_ms_max: the difference from now, before or after it.
        utc_offsets_ms: of zones whose time clients may write as if it was UTC, besides UTC.
    """

    age_ms_max: int
    utc_offsets_ms: tuple[int, ...] = ()

    def age_ms(self, text: str, now_ms: int) -> int:
        """Return the age of a signed time, in the zone that makes it smallest. Raises CodedError if it is invalid."""
        age_ms = now_ms - _time_ms(text)
        if not text.endswith("Z"):
            return age_ms
        return min((age_ms + offset for offset in (0, *self.utc_offsets_ms)), key=abs)


def user_of(metadata: Mapping[str, str], address: str, now_ms: int, times: AllowedTimes) -> ActsFor:
    """Return the user of a call from `address`. Its signature is still to be checked. Raises CodedError."""
    header, time = metadata.get(AUTHORIZATION, ""), metadata.get(DATE_TIME, "")
    if not header:
        raise CodedError(pb.UNAUTHORIZED, "calls must be signed: give the client an access key and a secret key")
    match = _HEADER.fullmatch(header.strip())
    if match is None:
        raise CodedError(pb.UNAUTHORIZED, f"the {AUTHORIZATION} header is not {_ALGORITHM} over {DATE_TIME}")
    age_ms = times.age_ms(time, now_ms)
    if abs(age_ms) > times.age_ms_max:
        raise CodedError(
            pb.UNAUTHORIZED,
            f"the call was signed {_distance(age_ms)}; at most {times.age_ms_max / 1000:.0f} s are allowed: "
            + _remedy(now_ms - _time_ms(time), times),
        )
    return ActsFor(match[1], time, match[2], address)


def _distance(age_ms: int) -> str:
    return f"{abs(age_ms) / 1000:.0f} s {'ago' if age_ms > 0 else 'from now, by the clock of the client'}"


def _remedy(age_ms: int, times: AllowedTimes) -> str:
    """Advise what to do about a time that is `age_ms` old, taken as UTC."""
    offset_ms = -round(age_ms / _ZONE_STEP_MS) * _ZONE_STEP_MS
    is_zone = abs(offset_ms) >= _ZONE_MS_FROM and _ZONE_MS_MIN <= offset_ms <= _ZONE_MS_MAX
    if not is_zone or abs(age_ms + offset_ms) > times.age_ms_max:
        return "is the clock of the client right?"
    hours, minutes = divmod(abs(offset_ms) // 60_000, 60)
    zone = f"{'+' if offset_ms > 0 else '-'}{hours:02}:{minutes:02}"
    return (
        f"is the client in the time zone {zone}? Those for Java, Go and Python write its time as if it was UTC: "
        f"set TZ=UTC for the client (for Java -Duser.timezone=UTC), or signature_utc_offsets={zone} for the proxy"
    )


def _time_ms(text: str) -> int:
    """Parse a time of a client: most write 20260102T030405Z, the one for Rust writes RFC 3339. Raises CodedError."""
    try:
        if len(text) > _TIME_LENGTH_MAX or "T" not in text:
            raise ValueError("no time of the day")
        signed_at = dt.datetime.fromisoformat(text)
        if signed_at.tzinfo is None:
            raise ValueError("no time zone")
        return int(signed_at.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise CodedError(
            pb.UNAUTHORIZED, f"{DATE_TIME} is {text[:_TIME_LENGTH_MAX]!r}, not a time such as 20260102T030405Z"
        ) from None
