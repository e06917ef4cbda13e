"""Producers: the send pipeline, transactions, request and reply, recall, tracing."""
