"""Celery on raftmq: the fate of tasks while workers, leaders and connections are broken, and the cost of a task."""
