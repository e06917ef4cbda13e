"""Signatures of requests, and the rules of who may make them."""
