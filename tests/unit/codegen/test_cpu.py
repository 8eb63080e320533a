"""Targets by triple, CPU and features: names are checked, code is emitted for machines other than this one."""

import os
import re

import pytest

from retune.compiler import te
from retune.compiler.codegen.cpu import describe, vector_bytes
from retune.compiler.core.errors import TargetError
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel, kernel_source
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.steps import Annotate, Split
from retune.compiler.schedule.task import SearchTask

MACHINE_OFFSET, ELF_X86_64, ELF_AARCH64 = 18, 62, 183


def task_for(text: str) -> SearchTask:
    a = te.placeholder((64,), name="a")
    target = Target(text)
    dag = ComputeDAG([a, te.compute((64,), lambda i: te.exp(a[i]) + 1.0, "b")])
    return SearchTask("t", dag, target, hardware_of(target, 2))


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("llvm -mtriple=aarch64-linux-gnu -mattr=+neon", ELF_AARCH64),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", ELF_AARCH64),
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4", ELF_X86_64),
        ("llvm -mtriple=x86_64-unknown-linux-gnu", ELF_X86_64),
    ],
)
def test_an_object_file_is_emitted_for_the_triple(text: str, machine: int) -> None:
    steps = (Split(1, 0, 64, (16,)), Annotate(1, 0, 3), Annotate(1, 1, 2))
    artifact = build_kernel(task_for(text), steps, "kernel")
    assert artifact.object_code[:4] == b"\x7fELF"
    assert int.from_bytes(artifact.object_code[MACHINE_OFFSET : MACHINE_OFFSET + 2], "little") == machine
    assert artifact.target == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver9", "no CPU 'znver9'"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=znver4", "no CPU 'znver4' of aarch64-linux-gnu"),
        ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4 -mattr=+neon", "no feature '\\+neon'"),
        ("llvm -mtriple=sun-nowhere", "sun-nowhere"),
        ("llvm -mattr=+warp-drive", "no feature"),
    ],
)
def test_names_that_llvm_does_not_know_are_errors(text: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TargetError, match=message):
        describe(Target(text))
    assert capfd.readouterr().err == ""
    os.write(2, b"still open")
    assert capfd.readouterr().err == "still open"


def test_code_for_a_gpu_is_ptx() -> None:
    artifact = build_kernel(task_for("cuda"), (), "kernel")
    assert artifact.target == "cuda"
    assert b".visible .entry kernel_kernel0(" in artifact.object_code


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ("-mcpu=haswell", 32),
        ("-mcpu=x86-64", 16),
        ("-mcpu=x86-64-v3", 32),
        ("-mcpu=x86-64-v4", 64),
        ("-mcpu=skylake-avx512", 64),
        ("-mcpu=znver4 -mattr=-avx512f", 32),
        ("-mcpu=x86-64 -mattr=+avx2", 32),
    ],
)
def test_the_vector_width_is_that_of_the_features(options: str, width: int) -> None:
    assert vector_bytes(Target(f"llvm -mtriple=x86_64-unknown-linux-gnu {options}")) == width


@pytest.mark.parametrize("text", ["llvm -mcpu=haswell", "llvm -mtriple=aarch64-linux-gnu -mattr=+neon"])
def test_innermost_loops_begin_at_a_cache_line(text: str) -> None:
    a, k, m = te.placeholder((64, 48), name="a"), te.reduce_axis((0, 48), "k"), te.reduce_axis((0, 64), "m")
    rows = te.compute((64,), lambda i: te.sum(a[i, k], axis=k), "rows")
    total = te.compute((1,), lambda _: te.sum(rows[m], axis=m), "total")
    target = Target(text)
    task = SearchTask("t", ComputeDAG([a, total]), target, hardware_of(target, 1))
    listing = kernel_source(task, (), "asm")
    assert len(re.findall(r"\.p2align\t6", listing)) == 2  # of three loops one is around another


@pytest.mark.parametrize(
    ("depth", "packs", "dtype", "lines"),
    [
        (4096, True, "float32", 2),
        (4096, False, "float32", 0),
        (64, True, "float32", 0),  # 8 KiB stay in the nearest cache
        (16384, True, "int8", 2),
    ],
)
def test_packed_constants_are_prefetched_line_by_line(depth: int, packs: bool, dtype: str, lines: int) -> None:
    a, b = te.placeholder((1, depth), dtype, "a"), te.placeholder((depth, 32), dtype, "b")
    k, total = te.reduce_axis(depth, "k"), "int32" if dtype == "int8" else dtype
    attrs = {"layout_free_placeholders": (b,)} if packs else {}
    product = te.compute((1, 32), lambda i, j: te.sum(te.cast(total, a[i, k]) * te.cast(total, b[k, j]), k), "c", attrs)
    target = Target("llvm -mcpu=icelake-server")
    dag, hardware = ComputeDAG([a, b, product]), hardware_of(target, 1)
    listing = kernel_source(SearchTask("t", dag, target, hardware), default_steps(dag, hardware), "asm")
    assert listing.count("prefetcht0") == lines
