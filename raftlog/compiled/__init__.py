"""Compiles the optional modules of packages, and checks whether they can be used.

A package with compiled modules has their Cython sources beside it, and a reference in Python for each. Without a
compiler, or with ``RAFTMQ_PURE_PYTHON`` set in the environment, the reference does everything.
"""
