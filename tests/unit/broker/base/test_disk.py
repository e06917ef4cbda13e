"""How full a disk is counts as `df` does: retention and refusals go by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mq.broker.base.disk import disk_usage, disk_used


def test_blocks_kept_for_root_are_neither_free_nor_in_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # 1000 blocks, 240 in use, 600 kept for root: 160 are left.
    disk = os.statvfs_result((4096, 4096, 1000, 760, 160, 99, 99, 99, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    assert disk_usage(tmp_path) == (160 * 4096, 400 * 4096)
    assert disk_used(tmp_path) == pytest.approx(0.6)
