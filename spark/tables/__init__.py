"""Writes topics into tables: the code of `raftmq table`. Modules without Spark hold the rules."""
