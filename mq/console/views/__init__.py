"""What pages show: values from the answers of servers. Pure."""
