"""Damage to the files of stopped brokers, like that of disks."""
