"""Sends a message by hand, to try a topic and its consumers."""

from __future__ import annotations

from mq.client.errors import MessageRefused
from mq.client.message import Message, SendResult
from mq.client.produce.producer import Producer
from mq.console.pages.visit import Form, InputInvalid, Outcome, Page, Visit, integer, one, require
from mq.console.views.links import link
from mq.inspection.operator_changes import OPERATOR
from mq.protocol.names import is_system_topic

DELAY_SECONDS_MAX = 40 * 86_400


async def send_form(visit: Visit) -> Page:
    """Build the page with the form for a message."""
    topic = visit.name("topic")
    return Page("send.html", f"Send a message to {topic}", {"topic": topic}, live=False)


async def send(visit: Visit, form: Form) -> Outcome:
    """Send one message, as an application would."""
    topic = require(form, "name")
    if is_system_topic(topic):
        raise InputInvalid(f"{topic} belongs to the brokers")
    delay = integer(form, "delay", 0, DELAY_SECONDS_MAX) if one(form, "delay") else 0
    body = (form.get("body") or [""])[-1].replace("\r\n", "\n")  # browsers send lines so
    message = Message(
        topic,
        body.encode(),
        tags=one(form, "tag") or None,
        keys=one(form, "keys").split(),
        properties=properties_of((form.get("properties") or [""])[-1]),
        delay=delay or None,
    )
    producer = Producer(visit.watch.namesrv, OPERATOR, auto_create_topics=False, remoting=visit.watch.remoting)
    async with producer:
        try:
            result = await producer.send(message)
        except MessageRefused as error:
            raise InputInvalid(str(error)) from error
    place = f"{result.queue.broker_name}/{result.queue.queue_id} {result.queue_offset}"
    if delay:
        text = f"Message {result.message_id} is stored, and comes to {topic} in {delay:,} s."
        return Outcome(link("/topic", name=topic), text, f"{topic}: {result.message_id}")
    return Outcome(_page_of(result), f"Stored at {place}.", f"{topic} {place}: {result.message_id}")


def properties_of(text: str) -> dict[str, str]:
    """Parse properties, one ``name=value`` per line. Raises InputInvalid."""
    properties: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise InputInvalid(f"{line[:40]!r} is not name=value")
        if name.strip() in properties:
            raise InputInvalid(f"property {name.strip()[:40]!r} is given twice")
        properties[name.strip()] = value.strip()
    return properties


def _page_of(result: SendResult) -> str:
    queue = result.queue
    return link(
        "/message", topic=queue.topic, broker=queue.broker_name, queue=queue.queue_id, offset=result.queue_offset
    )
