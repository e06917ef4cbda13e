"""POP consumption: messages stay invisible to others for a while and are acknowledged one by one."""
