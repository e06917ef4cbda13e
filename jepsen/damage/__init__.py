"""Damages files of stopped brokers as failing disks do."""
