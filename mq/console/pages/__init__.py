"""Handles requests for pages: asks the servers through a `Watch`, and gives the answers to `mq.console.views`."""
