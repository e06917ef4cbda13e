"""Transactional messages: half messages, their commit or rollback, and check-backs."""
