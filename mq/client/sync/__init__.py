"""The SDK for programs without an event loop: the same clients, whose event loop runs in another thread.

A method here takes, returns and raises the same as the asynchronous client's method of that name, and blocks until it
is done. Many threads may use one object at once. Threads that wait for messages when it is closed get ClientClosed. A
client that is never closed is closed when the program ends.
"""

from mq.client.sync.admin import SyncAdmin
from mq.client.sync.consumers import SyncDelivery, SyncLiteConsumer, SyncPopConsumer, SyncPullConsumer, SyncPushConsumer
from mq.client.sync.producers import SyncProducer, SyncSetTransaction, SyncTransactionProducer

__all__ = [
    "SyncAdmin",
    "SyncDelivery",
    "SyncLiteConsumer",
    "SyncPopConsumer",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncSetTransaction",
    "SyncTransactionProducer",
]
