"""Keeps complete files of a group's log in object storage, each with an index.

It has the layout of a backup in object storage (`raftlog.segment.backup`), and `raftmq backup` may continue it.
"""
