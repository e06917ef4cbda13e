"""`raftmq console`: web pages that show a cluster, and change it if that is allowed.

A process of its own on top of the SDK. `views` has what pages show (pure), `pages` the handlers of requests, `watch`
asks the servers once for all who look, `safety` and `sessions` decide who may do what.
"""
