"""`raftmq doctor`: shows the problems of a cluster, the worst first, each with a remedy.

`mq.inspection` asks the servers and judges the answers; `commands` prints the findings.
"""
