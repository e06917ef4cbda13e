"""Converts errors of the SDK to errors of commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.client.errors import ClientError
from mq.filter.subscription import SubscriptionError
from mq.protocol.names import NameRefused


@contextmanager
def client_errors() -> Iterator[None]:
    """Turn errors of the client, invalid addresses and invalid names into a message and an exit code."""
    try:
        yield
    except ClientError as error:
        raise CommandFailed(str(error), EXIT_FAILED) from error
    except (ValueError, NameRefused, SubscriptionError) as error:
        raise CommandFailed(str(error)) from error
