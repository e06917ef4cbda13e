"""`raftmq doctor`: what is wrong in a cluster now, worst first, and what to do about it.

`survey` asks the servers, `replicas` and `consumers` judge the answers (pure), `commands` prints the findings.
"""
