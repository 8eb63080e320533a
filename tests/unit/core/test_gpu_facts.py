"""How many blocks a multiprocessor runs at a time: NVIDIA's own rules, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.core.gpu_facts import arch_of, facts_of, lanes_of, runs_code


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks"),
    [
        ("sm_80", 256, 32, 0, 8),  # 2048 threads
        ("sm_80", 256, 64, 0, 4),  # 65536 registers
        ("sm_80", 256, 65, 0, 3),  # which come in eights a thread
        ("sm_80", 1024, 64, 0, 1),
        ("sm_80", 1024, 65, 0, 0),
        ("sm_80", 64, 24, 48 << 10, 3),  # 164 KiB, 49 for each block
        ("sm_80", 32, 16, 0, 32),  # blocks
        ("sm_86", 256, 32, 0, 6),  # 1536 threads
        ("sm_75", 256, 32, 0, 4),  # 1024 threads
        ("sm_90", 128, 255, 0, 2),
        ("sm_90", 128, 256, 0, 0),
        ("sm_90", 128, 32, 228 << 10, 0),
        ("sm_70", 100, 32, 0, 16),  # four warps each
        ("sm_90", 224, 80, 0, 3),  # seven warps each of 24
        ("sm_90", 224, 88, 0, 2),  # of 23 that fit, 20 are in fours
    ],
)
def test_resident_blocks_follow_from_registers_and_shared_memory(
    arch: str, threads: int, registers: int, shared: int, blocks: int
) -> None:
    assert int(facts_of(arch).resident(threads, registers, shared)) == blocks


@pytest.mark.parametrize(
    ("here", "made_for", "as_text", "as_code"),
    [
        ("sm_90", "sm_90", True, True),
        ("sm_89", "sm_80", True, True),
        ("sm_90", "sm_80", True, False),
        ("sm_80", "sm_86", False, False),
        ("sm_90", "sm_90a", True, True),
        ("sm_90a", "sm_90a", True, True),
        ("sm_90a", "sm_90", True, True),
        ("sm_90a", "sm_80", True, False),
        ("sm_100", "sm_90a", False, False),
        ("sm_100", "sm_90", True, False),
        ("sm_75", "", True, False),
    ],
)
def test_what_code_a_gpu_runs(here: str, made_for: str, as_text: bool, as_code: bool) -> None:
    found = (runs_code(here, made_for, assembled=False), runs_code(here, made_for, assembled=True))
    assert found == (as_text, as_code)


@pytest.mark.parametrize(
    ("threads", "most"), [(32, 255), (128, 255), (256, 255), (257, 168), (512, 128), (784, 72), (1024, 64)]
)
def test_the_most_registers_of_a_thread_are_those_with_which_a_block_still_fits(threads: int, most: int) -> None:
    facts = facts_of("sm_90")
    assert int(facts.most_registers(threads)) == most
    assert int(facts.resident(threads, most, 0)) >= 1
    assert int(facts.resident(threads, most + 1, 0)) == 0


def test_many_programs_at_once() -> None:
    found = facts_of("sm_80").resident(np.array([256, 1024]), np.array([32, 65]), np.array([0, 0]))
    np.testing.assert_array_equal(found, [8, 0])


def test_code_for_an_h100_may_use_what_no_other_gpu_has() -> None:
    assert [arch_of(each) for each in ((8, 0), (8, 9), (9, 0), (10, 0))] == ["sm_80", "sm_89", "sm_90a", "sm_100"]


def test_what_is_not_known_is_like_what_came_before() -> None:
    assert facts_of("sm_87") == facts_of("sm_86")
    assert facts_of("sm_90a") == replace(facts_of("sm_90"), group_tensor=2048)
    assert facts_of("sm_120").multiprocessors == facts_of("sm_90").multiprocessors
    assert facts_of("") == facts_of("sm_80")
    assert facts_of("sm_60") == facts_of("sm_70")
    assert (lanes_of((8, 0)), lanes_of((8, 6)), lanes_of((9, 0))) == (64, 128, 128)
