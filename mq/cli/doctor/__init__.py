"""`raftmq doctor`: what is wrong in a cluster now, worst first, and what to do about it.

`mq.inspection` asks the servers and judges the answers; `commands` prints the findings.
"""
