"""A broker for Dramatiq: `pip install raftmq[dramatiq]`.

    import dramatiq
    from raftmq.dramatiq import RaftmqBroker

    dramatiq.set_broker(RaftmqBroker("127.0.0.1:9876"))

A queue is a topic, with one queue of the brokers for each level of priority; workers pop its messages. The page for
users is `docs/dramatiq.md`.

| module | what it does |
|---|---|
| `broker` | what Dramatiq calls, in threads of the application |
| `consumer` | the messages of one queue for one worker: pops as many as it may have |
| `session` | what a process shares: a thread with an event loop and its clients; renews what is not acknowledged |
"""

try:
    from raftmq.dramatiq.broker import RaftmqBroker
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'raftmq[dramatiq]'", name=error.name) from error

__all__ = ["RaftmqBroker"]
