"""Measures the performance of raftmq: one script for each question."""
