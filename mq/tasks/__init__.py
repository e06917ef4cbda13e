"""The code that the brokers for Celery (`mq.celery`) and Dramatiq share: topics as task queues.

| module | what it does | |---|---| | `names` | names of topics and groups for queues of any name | | `sending` | sends
messages to a queue with levels of priority, and stores each once | | `queue_calls` | requests about popped messages |
"""
