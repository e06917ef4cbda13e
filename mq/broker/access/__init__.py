"""Access control: accounts with their keys and permissions, and the permissions that each request needs."""
