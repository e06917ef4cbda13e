"""Serves metrics and health checks of a server process, over HTTP on a separate port."""
