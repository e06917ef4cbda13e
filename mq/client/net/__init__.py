"""Connections to brokers and name servers: routes, heartbeats, liveness, one request and its reply."""
