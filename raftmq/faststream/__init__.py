"""A broker for FastStream: `pip install raftmq[faststream]`.

    from faststream import FastStream
    from raftmq.faststream import RaftmqBroker

    broker = RaftmqBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None: ...

FastStream's interface for brokers is not stable before its release 1.0; this package works with 0.7. The page for users
is `docs/faststream.md`.
"""

try:
    from raftmq.faststream.annotations import RaftmqMessage
    from raftmq.faststream.broker import RaftmqBroker
    from raftmq.faststream.messages import RaftmqResponse
    from raftmq.faststream.router import RaftmqPublisher, RaftmqRoute, RaftmqRouter
    from raftmq.faststream.testing import TestRaftmqBroker
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'raftmq[faststream]'", name=error.name) from error

__all__ = [
    "RaftmqBroker",
    "RaftmqMessage",
    "RaftmqPublisher",
    "RaftmqResponse",
    "RaftmqRoute",
    "RaftmqRouter",
    "TestRaftmqBroker",
]
