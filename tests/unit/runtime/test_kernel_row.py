"""Rows of kernels as JSON, of this version and of the one before it."""

import json

import pytest

from retune.compiler.runtime.kernel_row import KernelRow, ProgramOrigin, kernel_table

ROW = KernelRow("conv", "key", 2, 2e9, 64, trials=16, default_seconds=0.1, origin=ProgramOrigin.RECORD, record_id="R")


def test_a_row_goes_through_json_unchanged() -> None:
    for row in (ROW, KernelRow("bare"), KernelRow("x", failed_rules=("a", "b"), best_seconds=0.5, used=False)):
        assert KernelRow.of(json.loads(json.dumps(row.to_json(), allow_nan=False))) == row


def test_a_kernel_of_a_network_of_the_version_before_is_read() -> None:
    told = {"task": "conv", "workload_key": "key", "weight": 2, "tunable": True, "record_id": None, "note": "why"}
    row = KernelRow.of({**told, "origin": "guess", "flops": 2e9})
    assert row == KernelRow("conv", "key", 2, 2e9, origin=ProgramOrigin.UNTESTED, note="why")


def test_a_row_without_a_known_origin_is_refused() -> None:
    with pytest.raises(ValueError, match="ProgramOrigin"):
        KernelRow.of({"name": "conv", "task_key": "key"})


def test_a_table_begins_with_what_takes_most_time() -> None:
    rows = [KernelRow("a", best_seconds=1e-3), KernelRow("b", weight=3, best_seconds=1e-3), KernelRow("c", used=False)]
    assert kernel_table(rows, ("kernel", "share", "origin")) == [
        ("b", "75.0%", "default schedule"),
        ("a", "25.0%", "default schedule"),
        ("c", "-", "not used"),
    ]
