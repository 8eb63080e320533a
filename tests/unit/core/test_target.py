"""Targets are read, checked and printed; hardware parameters have a record form."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

from retune.compiler.core.errors import TargetError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.logs.log import code_target

TEXTS = [
    "llvm",
    "llvm -mcpu=znver4",
    "llvm -mtriple=aarch64-linux-gnu -mattr=+neon",
    "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4 -mattr=+avx2,-avx512f -device=arm_cpu",
    "cuda",
    "cuda -arch=sm_90a",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_target_prints_as_it_was_written(text: str) -> None:
    target = Target(text)
    assert str(target) == text
    assert Target(str(target)) == target
    assert pickle.loads(pickle.dumps(target)) == target == copy.copy(target)
    assert hash(Target(text)) == hash(target)


def test_fields_and_texts_are_the_same_and_fields_win() -> None:
    assert Target("llvm -mcpu=znver4") == Target("llvm", cpu="znver4") == Target(cpu="znver4")
    assert Target("llvm  -mattr=+neon   -mtriple=aarch64-linux-gnu") == Target(
        triple="aarch64-linux-gnu", features="+neon"
    )
    assert Target("llvm -mcpu=znver4", cpu="znver5").cpu == "znver5"
    assert replace(Target("llvm -mcpu=znver4"), cpu="znver5") == Target("llvm -mcpu=znver5")
    assert Target() == Target.host() == Target("llvm")
    assert Target("cuda").is_gpu
    assert not Target.host().is_gpu


@pytest.mark.parametrize(
    ("text", "same", "cores"),
    [
        ("llvm -num-cores 2", "llvm", 2),
        ("llvm -mcpu core-avx2", "llvm -mcpu=core-avx2", 0),
        ("llvm -keys cpu -mcpu=znver4 --mattr +avx2,-fma -system-lib", "llvm -mcpu=znver4 -mattr=+avx2,-fma", 0),
        ("cuda -libs=cudnn -max_num_threads 1024 -arch sm_80", "cuda -arch=sm_80", 0),
        ("nvidia/geforce-rtx-3070", "cuda -arch=sm_86", 0),
        ("nvidia/jetson-agx-xavier", "cuda -arch=sm_72", 0),
        ("raspberry-pi/4b-aarch64", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -mattr=+neon", 4),
        ({"tag": "nvidia/nvidia-a100"}, "cuda -arch=sm_80", 0),
    ],
)
def test_options_after_a_space_and_tags_are_read(text: Any, same: str, cores: int) -> None:
    target = Target(text)
    assert (str(target), target.num_cores) == (same, cores)
    assert target == Target(same)


def test_logs_name_the_code_of_targets_with_options_after_a_space() -> None:
    assert code_target("llvm -keys cpu -mcpu core-avx2 -num-cores 4 -unknown word") == "llvm -mcpu=core-avx2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nvidia/geforce-9999", "or a tag such as"),
        ("llvm znver4", "cannot read 'znver4'"),
        ("llvm -num-cores two", "an integer from 1 to 4096, not 'two'"),
        ("llvm -mcpu a -mcpu=b", "-mcpu is given twice"),
        ("", "first word must be one of llvm, cuda"),
        ("metal", "first word must be one of llvm, cuda"),
        ("llvm -mcpu", "cannot read '-mcpu'"),
        ("llvm -mcpu=", "cannot read '-mcpu='"),
        ("llvm -arch=sm_90", "known options: -mtriple"),
        ("llvm mcpu=znver4", "cannot read 'mcpu=znver4'"),
        ("llvm -mcpu=a -mcpu=b", "-mcpu is given twice"),
        ("llvm -mattr=avx2", "features are written"),
        ("cuda -arch=90", "written sm_90"),
        ("cuda -mcpu=znver4", "known options: -arch"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Target(text)


def test_fields_of_another_kind_and_of_two_words_are_refused() -> None:
    with pytest.raises(TargetError, match="cuda has no cpu"):
        Target("cuda", cpu="znver4")
    with pytest.raises(TargetError, match="one word"):
        Target(cpu="znver 4")


def test_hardware_parameters_have_the_order_of_records() -> None:
    row = [-1, 16, 64, 49152, 2**31 - 1, 1024, 8, 32]
    hardware = HardwareParams.from_row(row)
    assert (hardware.num_cores, hardware.max_threads_per_block, hardware.warp_size) == (-1, 1024, 32)
    assert hardware.to_row() == row
    assert HardwareParams(4).to_row() == [4, 64, 64, 0, 0, 0, 0, 0]
    for wrong in ([1, 2], [1.0] * 8, [True] * 8):
        with pytest.raises(TargetError, match="8 integers"):
            HardwareParams.from_row(wrong)  # type: ignore[arg-type]
