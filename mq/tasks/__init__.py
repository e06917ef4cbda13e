"""The common part of the brokers for Celery (`mq.celery`) and Dramatiq: topics as queues of tasks.

| module | what it does | |---|---| | `names` | names of topics and groups for queues of any name | | `sending` | sends
messages to a queue with levels of priority, and stores each once | | `queue_calls` | requests about popped messages |
"""
