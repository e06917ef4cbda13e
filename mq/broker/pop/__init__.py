"""POP consumption: popped messages are invisible to others for a while and are acknowledged one by one."""
