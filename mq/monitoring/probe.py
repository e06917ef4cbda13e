"""``python -m mq.monitoring.probe URL`` exits with 0 if a server responds with 200, as a health check in containers.

Container images have neither curl nor wget.
"""

from __future__ import annotations

import sys
from http.client import HTTPException
from urllib.error import URLError
from urllib.request import urlopen

_SECONDS_MAX = 5.0


def main() -> int:
    """Send the request and print the response. Returns 1 for any status but 200, or without a response."""
    url = sys.argv[1] if len(sys.argv) == 2 else ""
    if not url.startswith("http://"):
        print("usage: python -m mq.monitoring.probe http://HOST:PORT/readyz", file=sys.stderr)  # noqa: T201
        return 2
    try:
        with urlopen(url, timeout=_SECONDS_MAX) as answer:  # noqa: S310 - the scheme was looked at
            print(answer.read().decode().strip())  # noqa: T201
    except URLError as error:
        reason = error.read().decode().strip() if hasattr(error, "read") else error.reason
        print(reason, file=sys.stderr)  # noqa: T201
        return 1
    except (OSError, HTTPException) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
