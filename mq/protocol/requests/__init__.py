"""The requests, one module for each family: a code's request, header fields, reply and bodies stand together."""
