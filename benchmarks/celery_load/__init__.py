"""Tests whether Celery's tasks on raftmq survive faults of workers, leaders and connections; measures their cost."""
