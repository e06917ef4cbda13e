"""Checks values of pipeline settings that are easily wrong, or could be secrets. Pure; errors name allowed values."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from typing import Any, Final

from spark.tables.documents import SecretInvalid, names, text, texts

_PASSWORD_IN_URL: Final = re.compile(r"//[^/@\s:]*:[^/@\s]+@")
"""Matches a password with a colon before it: without one, Azure has CONTAINER@ACCOUNT there."""
_SECRET: Final = re.compile(
    r"secret|password|passwd|(access|account)[._-]?key|token(?!-(refresh|exchange|expires)|file$)|credential$",
    re.IGNORECASE,
)  # not credentials.provider, which names a class
_SECRET_IN_VALUE: Final = re.compile(
    r"(secret|password|passwd|access[._-]?key|token)[\w.-]*=[^\s&;]", re.IGNORECASE
)  # of a URL, or of options for Java
_PACKAGE: Final = re.compile(r"[\w.-]+(:[\w.-]+){2,4}")


def start(value: Any) -> str | int:
    """Parse ``earliest``, ``latest``, or epoch milliseconds; a day begins at midnight in UTC."""
    if value in ("earliest", "latest"):
        return str(value)
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        if moment.year < 1970:
            raise ValueError("must be a time after 1970")
        return int(moment.timestamp() * 1000)
    if isinstance(value, date):
        return start(datetime.combine(value, time()))
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return start(moment)
    raise ValueError("must be earliest, latest, or a time such as 2026-01-31T00:00:00Z")


def without_password(value: Any) -> str:
    """Return a text, such as a URL, that must not have a user's password in it."""
    url = text(value)
    if _PASSWORD_IN_URL.search(url):
        raise SecretInvalid("must not have credentials: use AWS_ACCESS_KEY_ID, or a profile, or spark-defaults.conf")
    return url


def spark_settings(value: Any) -> dict[str, str]:
    """Check settings of Spark; they must not have secrets."""
    settings = texts(value)
    for name, each in settings.items():
        if not name.startswith("spark."):
            raise SecretInvalid(f"names {name}: settings of Spark begin with spark.")  # another may be a secret
        if _SECRET.search(name) or _PASSWORD_IN_URL.search(each) or _SECRET_IN_VALUE.search(each):
            raise SecretInvalid(
                f"names {name}: process lists show settings of this file. Set secrets in the environment or in "
                f"spark-defaults.conf"
            )
    return settings


def packages(value: Any) -> tuple[str, ...]:
    """Check names of Maven packages."""
    coordinates = names(value)
    for each in coordinates:
        if not _PACKAGE.fullmatch(each):
            raise SecretInvalid("must be packages of Maven, such as io.delta:delta-spark_4.1_2.13:4.4.0")  # not shown
    return coordinates
