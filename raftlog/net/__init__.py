"""The network between replicas: event loop, frames, connections, admission and authentication."""
