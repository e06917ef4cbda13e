"""Celery on raftmq: what becomes of tasks while workers, leaders and connections are broken, and what a task costs."""
