"""Damages the files of stopped brokers as disks do."""
