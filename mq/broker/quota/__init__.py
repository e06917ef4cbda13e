"""Quotas of users and topics: requests that wait or are refused."""
