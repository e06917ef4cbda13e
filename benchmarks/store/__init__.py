"""Measures the message store against its goals: many queues, restarts, followers."""
