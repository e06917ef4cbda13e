"""The kombu transport, and so Celery's. Applications import it as `raftmq.celery`.

| module | what it does |
|---|---|
| `transport`, `channel` | what kombu sees, in the application's threads |
| `session` | what all connections of a process share: one thread with an event loop, and its clients |
| `blocking_send` | the short way of a message to a known queue, by a connection of the publishing thread |
| `channel_consumer` | what a channel consumes: pops as many messages as it may have |
| `deliveries` | messages that a channel has: renews their invisible time, settles them |
| `acknowledgements` | gathers what is done, so one request acknowledges several messages |
| `topics` | topics of queues and exchanges, and the bindings between them |
| `broadcasts` | queues that end with their process; they read what is broadcast to an exchange |
| `beat` | hands the schedule of Celery's beat to the brokers |
| `envelope`, `address` | a message of kombu as one of ours; where and how to connect |
"""
