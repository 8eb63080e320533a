"""Hardware parameters follow the target's instruction set."""

from dataclasses import replace

import pytest

from retune.compiler.core.errors import TargetError
from retune.compiler.core.gpu_facts import facts_of
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.hardware import complete, hardware_of, hardware_of_gpu, target_on
from tests.support.fake_cuda import DEVICE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4", (64, 32)),
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell", (32, 16)),
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64 -mattr=+avx512f", (64, 32)),
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64", (16, 16)),
        ("llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1", (16, 32)),
    ],
)
def test_vector_unit_of_a_named_cpu(text: str, expected: tuple[int, int]) -> None:
    hardware = hardware_of(Target(text), 3)
    assert (hardware.vector_unit_bytes, hardware.vector_registers) == expected
    assert hardware.num_cores == 3


def test_the_host_has_a_vector_unit() -> None:
    assert hardware_of(Target.host(), 1).vector_unit_bytes in (16, 32, 64)


def test_a_gpu_has_limits_of_its_blocks() -> None:
    assert hardware_of(Target("cuda"), 2).to_row() == [-1, 16, 64, 49152, 2**31 - 1, 1024, 8, 32]


@pytest.mark.parametrize(
    ("arch", "kibibytes"),
    [("sm_70", 96), ("sm_75", 64), ("sm_80", 163), ("sm_86", 99), ("sm_89", 99), ("sm_90", 227), ("sm_90a", 227)],
)
def test_a_block_may_have_as_much_shared_memory_as_its_gpu_gives_one(arch: str, kibibytes: int) -> None:
    assert hardware_of(Target("cuda", arch=arch), 1).max_shared_memory_per_block == kibibytes << 10


def test_of_a_gpu_that_is_not_known_a_block_has_what_all_give() -> None:
    for arch in ("sm_87", "sm_120"):
        assert hardware_of(Target("cuda", arch=arch), 1).max_shared_memory_per_block == 48 << 10


@pytest.mark.parametrize(
    ("arch", "why"), [("sm_12345", "LLVM knows no CPU 'sm_12345'"), ("sm_61", "made for GPUs from sm_70 on")]
)
def test_a_gpu_that_kernels_cannot_be_made_for_is_refused(arch: str, why: str) -> None:
    with pytest.raises(TargetError, match=why):
        hardware_of(Target("cuda", arch=arch), 1)


def test_a_target_without_an_architecture_is_that_of_the_gpu_that_is_there() -> None:
    assert str(target_on(Target("cuda"), DEVICE)) == "cuda -arch=sm_90a"
    assert str(target_on(Target("cuda -math=tf32"), DEVICE)) == "cuda -arch=sm_90a -math=tf32"
    assert target_on(Target("cuda"), replace(DEVICE, arch="sm_999")) == Target("cuda")  # newer than LLVM
    assert target_on(Target("cuda -arch=sm_90"), DEVICE) == Target("cuda -arch=sm_90")


def test_a_target_without_instructions_of_warpgroups_gets_none() -> None:
    """An H100 has them, but code for sm_90 runs on GPUs that do not."""
    assert hardware_of_gpu(DEVICE).gpu.group_tensor > 0
    assert hardware_of_gpu(DEVICE, target_on(Target("cuda"), DEVICE)).gpu.group_tensor > 0
    assert hardware_of_gpu(DEVICE, target_on(Target("cuda -arch=sm_90"), DEVICE)).gpu.group_tensor == 0


def test_incompatible_gpu_is_refused_before_building() -> None:
    with pytest.raises(TargetError, match=r"the GPU here, Double, is sm_90a and runs no code for sm_120; name sm_90a"):
        target_on(Target("cuda -arch=sm_120"), DEVICE)


def test_what_no_cpu_can_be_without_is_filled_in() -> None:
    host, some = Target.host(), HardwareParams(3, 32, 128, vector_registers=8)
    assert complete(some, host) == some
    filled = complete(HardwareParams(0, 0, -1), host)
    assert filled == hardware_of(host, filled.num_cores)
    assert filled.num_cores >= 1
    assert complete(replace(some, cache_line_bytes=0), host) == replace(some, cache_line_bytes=64)


def test_a_gpu_that_is_there_says_what_it_has() -> None:
    found = hardware_of_gpu(replace(DEVICE, max_shared_memory_per_block=1000, max_threads_per_block=512))
    assert (found.max_shared_memory_per_block, found.max_threads_per_block, found.warp_size) == (1000, 512, 32)
    assert found.gpu == DEVICE.facts
    assert hardware_of(Target("cuda -arch=sm_90"), 1).gpu == facts_of("sm_90")
