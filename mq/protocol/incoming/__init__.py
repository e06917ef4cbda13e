"""Decodes the bytes that connections receive into typed requests and responses."""
