"""What the brokers for task frameworks share: queues of tasks as topics, for Celery (`mq.celery`) and Dramatiq.

| module | what it does |
|---|---|
| `names` | names of topics and groups for queues of any name |
| `sending` | sends messages to a queue with levels of priority, and stores each once |
| `queue_calls` | requests about popped messages |
"""
