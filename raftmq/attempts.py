"""Messages that were delivered too often: how the brokers for frameworks make dead letters of them."""

from __future__ import annotations

import logging

from mq.client import ClientError, PopConsumer, PoppedMessage

__all__ = ["give_up"]

NOT_DEAD_SECONDS = 60.0
"""Seconds until a message is given up again if its dead letter could not be stored."""


async def give_up(consumer: PopConsumer, message: PoppedMessage, log: logging.Logger) -> None:
    """Store a dead letter instead of handling `message`; if no broker takes it, it comes again. Raises ClientClosed."""
    times, name = message.reconsume_times, " ".join(message.keys) or message.message_id
    try:
        await consumer.dead_letter(message, f"delivered {times} times, and never acknowledged")
        await consumer.ack(message)
        log.error("%s is a dead letter, it was delivered %d times", name, times)
    except ClientError as error:
        log.warning("%s is no dead letter yet: %s", name, error)
        try:
            await consumer.nack(message, delay=NOT_DEAD_SECONDS)
        except ClientError as reason:
            log.info("%s comes again when its time is over: %s", name, reason)
