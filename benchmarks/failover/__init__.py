"""Measures what clients notice when leaders fail, and when replicas are upgraded."""
