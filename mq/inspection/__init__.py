"""Examines a running cluster from outside, for commands and for the console.

`catalogue`, `cluster`, `members` and `survey` ask the servers through the SDK's `Admin`; `replicas` and `consumers`
judge the answers into `findings`, all of them in `diagnosis`. Everything but the asking is pure.
"""
