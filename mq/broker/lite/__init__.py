"""Lite topics: very many small queues within one topic, which clients subscribe to one by one."""
