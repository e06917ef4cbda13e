"""A client's requests on their way to handlers, and the answers back."""
