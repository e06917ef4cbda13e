"""Turns the answers of servers into the values that pages show. Pure."""
