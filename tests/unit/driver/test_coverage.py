"""How much of a network each origin of programs serves."""

from dataclasses import replace

import pytest

from retune.compiler.runtime.kernel_row import CoverageReport, KernelRow, ProgramOrigin

KERNELS = (
    KernelRow("conv", "a", 6, 10e9, origin=ProgramOrigin.RECORD, record_id="R1"),
    KernelRow("other conv", "b", 1, 30e9, origin=ProgramOrigin.TRANSFER),
    KernelRow("dense", "c", 1, 6e9, origin=ProgramOrigin.UNTESTED),
    KernelRow("softmax", "d", 2, 2e9),
    KernelRow("copy", "e", 10, tunable=False),
)


def test_shares_are_of_calls_and_of_operations() -> None:
    report = CoverageReport.of(KERNELS)
    assert [share.origin for share in report.shares] == ["record", "transfer", "guess", "default"]
    assert [share.kernels for share in report.shares] == [1, 1, 1, 2]
    assert [share.tunable for share in report.shares] == [1, 1, 1, 1]
    assert [share.calls for share in report.shares] == [6, 1, 1, 12]
    assert [share.share_of_flops for share in report.shares] == [0.6, 0.3, 0.06, 0.04]
    assert sum(share.share_of_calls for share in report.shares) == pytest.approx(1.0)
    assert report.kernels == KERNELS


def test_it_is_one_line_for_people() -> None:
    text = str(CoverageReport.of(KERNELS))
    assert text == (
        "programs from tuned records 60.0% of the FLOPs, 30.0% of the calls; "
        "programs of similar kernels 30.0% of the FLOPs, 5.0% of the calls; "
        "untested candidates 6.0% of the FLOPs, 5.0% of the calls; "
        "the default schedule 4.0% of the FLOPs, 60.0% of the calls"
    )


def test_a_network_without_operations_has_shares() -> None:
    (share,) = CoverageReport.of(KERNELS[-1:]).shares
    assert (share.share_of_calls, share.share_of_flops) == (1.0, 0.0)


def test_what_fell_back_is_named() -> None:
    report = CoverageReport.of(KERNELS)
    assert report.fallbacks == (KERNELS[3],)
    assert report.fallback_text() == ("1 of 4 kernels worth tuning uses the default schedule: softmax")
    broken = replace(KERNELS[0], origin=ProgramOrigin.DEFAULT, record_id="", note="record R1 cannot be read: it ends")
    text = CoverageReport.of((broken, *KERNELS[1:])).fallback_text()
    assert text.startswith("2 of 4 kernels worth tuning use the default schedule: conv (")
    assert text.endswith(": conv (record R1 cannot be read: it ends); softmax")
    assert CoverageReport.of(KERNELS[:3]).fallback_text() == ""
