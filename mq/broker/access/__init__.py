"""Who may do what: accounts with their keys and permissions, and what each request needs."""
