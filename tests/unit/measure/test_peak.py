"""The kernel that measures the peak keeps everything in registers."""

import re

import pytest

from retune.compiler.codegen.cpu import assembly
from retune.compiler.core.target import Target
from retune.compiler.measure.limit_kernels import ACCUMULATORS, peak_module


@pytest.mark.parametrize(("cpu", "register"), [("haswell", "ymm"), ("znver3", "ymm"), ("skylake-avx512", "zmm")])
def test_the_loop_of_the_peak_is_multiply_adds_in_registers_alone(cpu: str, register: str) -> None:
    target = Target(f"llvm -mcpu={cpu}")
    text, lanes = peak_module(target)
    lines = assembly(text, target).splitlines()
    assert lanes == {"ymm": 8, "zmm": 16}[register]
    adds = [number for number, line in enumerate(lines) if "vfmadd" in line]
    assert adds
    assert len(adds) % ACCUMULATORS == 0
    assert all(lines[number].count(f"%{register}") == 3 for number in adds), "no operand is read from memory"
    loop = lines[adds[0] : adds[-1] + 1]
    assert not [line for line in loop if re.search(r"\(%r[bs]p", line)], "nothing is spilled"
