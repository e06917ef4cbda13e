"""How frames, headers and bodies are built, whatever the request."""
