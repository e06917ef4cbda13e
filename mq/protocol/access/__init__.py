"""Computes and checks the signatures of requests, and knows who may make which request."""
