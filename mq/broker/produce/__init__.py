"""Requests that send messages: single, batch, numbered, replies, and messages returned for a retry."""
