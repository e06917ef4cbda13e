"""The archive of a group: complete files of its log in object storage, each with an index.

It has the layout of a backup in object storage (`raftlog.segment.backup`), and `raftmq backup` may continue it.
"""
