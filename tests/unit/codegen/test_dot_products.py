"""Dot products become the target's instructions, and compute the same without."""

import re
from collections.abc import Sequence

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.dot_instructions import dot_instructions
from retune.compiler.core.dtype import is_float
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel, kernel_source
from retune.compiler.ir.expr import Expr
from retune.compiler.runtime.buffers import FencedArray
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Reorder, Split, Step
from retune.compiler.schedule.task import SearchTask
from tests.support.fenced import fenced

HOST = Target.host()
BYTES = ("uint8", "int8", "int32")
HALVES = ("bfloat16", "bfloat16", "float32")
needs_bytes = pytest.mark.skipif(BYTES[:2] not in dot_instructions(HOST), reason="no dot product of bytes here")
needs_halves = pytest.mark.skipif(HALVES[:2] not in dot_instructions(HOST), reason="no dot product of bfloat16 here")

X86: dict[str, tuple[set[int], set[int], set[int]]] = {
    "znver4": ({16, 8, 4}, set(), {16, 8, 4}),
    "cascadelake": ({16, 8, 4}, set(), set()),
    "alderlake": ({8, 4}, set(), set()),
    "skylake-avx512": (set(), {16, 8, 4}, set()),
    "x86-64-v3": (set(), {8, 4}, set()),
    "x86-64-v2": (set(), {4}, set()),
}


@pytest.mark.parametrize("cpu", X86)
def test_x86_cpus_have_what_their_extensions_say(cpu: str) -> None:
    found = dot_instructions(Target(f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}"))
    pairs = BYTES[:2], ("int16", "int16"), HALVES[:2]
    assert tuple(set(found[pair].names) if pair in found else set() for pair in pairs) == X86[cpu]


def test_features_decide_not_the_name() -> None:
    plain = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"
    assert set(dot_instructions(Target(f"{plain} -mattr=+avxvnni"))) == {BYTES[:2]}
    assert dot_instructions(Target("llvm -mtriple=riscv64-linux-gnu")) == {}


def dag_of(types: Sequence[str], n: int, m: int, k: int, free: bool) -> ComputeDAG:
    a, b, r = te.placeholder((n, k), types[0], "a"), te.placeholder((k, m), types[1], "b"), te.reduce_axis(k, "r")
    attrs = {"layout_free_placeholders": (b,)} if free else None

    def body(i: Expr, j: Expr) -> Expr:
        return te.sum(te.cast(types[2], a[i, r]) * te.cast(types[2], b[r, j]), r)

    return ComputeDAG([a, b, te.compute((n, m), body, "c", attrs)])


def tiled(n: int, m: int, rows: int, columns: int) -> tuple[Step, ...]:
    return (
        Split(2, 0, n, (rows,)),
        Split(2, 2, m, (columns,)),
        Reorder(2, (2, 0, 4, 1, 3)),
        Annotate(2, 4, Annotation.VECTORIZE),
    )


def task_of(dag: ComputeDAG, target: Target = HOST, width: int = 64) -> SearchTask:
    return SearchTask("t", dag, target, HardwareParams(1, width))


def computed(task: SearchTask, steps: tuple[Step, ...]) -> tuple[np.ndarray, np.ndarray]:
    """What a kernel makes of extreme inputs, and what it should."""
    rng = np.random.default_rng(7)
    values = []
    for tensor in task.dag.inputs:
        if is_float(tensor.dtype):
            values.append(rng.uniform(-1, 1, tensor.shape).astype(tensor.dtype))
            continue
        info = np.iinfo(tensor.dtype)
        drawn = rng.integers(info.min, info.max, tensor.shape, tensor.dtype, endpoint=True)
        values.append(np.where(rng.integers(2, size=tensor.shape) > 0, drawn, rng.choice([info.min, info.max])))
    artifact = build_kernel(task, steps, "kernel")
    wide = "float64" if is_float(task.dag.outputs[0].dtype) else "int64"
    return fenced(artifact, values), values[0].astype(wide) @ values[1].astype(wide)


@needs_bytes
def test_a_tile_of_bytes_is_instructions_and_nothing_else() -> None:
    task = task_of(dag_of(BYTES, 8, 64, 64, True))
    text = kernel_source(task, tiled(8, 64, 4, 32), "asm")
    loop = text[text.index("vpdpbusd") :]
    assert len(re.findall(r"vpdpbusd\s.*zmm", text)) == 8  # 4 rows of 2 vectors
    assert not re.search(r"vpmulld|vpmovsxbd|vpermt2b", loop)


@needs_bytes
def test_the_sign_of_one_factor_costs_one_row() -> None:
    text = kernel_source(task_of(dag_of(("int8", "int8", "int32"), 8, 64, 64, True)), tiled(8, 64, 4, 32), "asm")
    assert len(re.findall(r"vpdpbusd\s.*zmm", text)) == 10  # and 2 vectors of what the turned sign adds


@pytest.mark.parametrize(("cpu", "width", "register"), [("skylake-avx512", 64, "zmm"), ("haswell", 32, "ymm")])
def test_a_tile_of_widened_bytes_widens_outside_of_its_products(cpu: str, width: int, register: str) -> None:
    task = task_of(dag_of(BYTES, 8, 64, 64, True), Target(f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}"), width)
    text = kernel_source(task, tiled(8, 64, 4, width // 2), "asm")
    loop = text[text.index("vpbroadcastd") : text.index("jb", text.index("vpbroadcastd"))]
    products = loop.count("vpmaddwd")
    assert len(re.findall(rf"vpmaddwd\s.*{register}", loop)) == products == loop.count("vpaddd") >= 8
    # Each strip of weights is widened once for four rows; rows are widened before the loop.
    assert loop.count("vpmovsxbw") == products // 4
    assert not re.search(r"vpmovzx|vpsrlw|vpsllw|vpand", loop)


@needs_halves
def test_a_tile_of_bfloat16_is_instructions_and_nothing_else() -> None:
    text = kernel_source(task_of(dag_of(HALVES, 8, 64, 64, True)), tiled(8, 64, 4, 32), "asm")
    assert len(re.findall(r"vdpbf16ps\s.*zmm", text)) == 8
    assert "vfmadd" not in text


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize(
    "types", [BYTES, ("int8", "uint8", "int32"), ("int8", "int8", "int32"), ("uint8", "uint8", "int32")]
)
def test_sums_of_bytes_are_exact_at_the_ends_of_their_range(types: Sequence[str], free: bool) -> None:
    for columns in (4, 8, 12, 16, 23, 48):
        found, wanted = computed(task_of(dag_of(types, 6, 2 * columns, 36, free)), tiled(6, 2 * columns, 3, columns))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("free", [True, False])
def test_sums_of_bfloat16_are_those_of_exact_products(free: bool) -> None:
    found, wanted = computed(task_of(dag_of(HALVES, 6, 48, 36, free)), tiled(6, 48, 3, 24))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=36 * 2.0**-23)


@needs_halves
def test_subnormal_bfloat16_count_as_zero_and_others_do_not() -> None:
    """What the instruction does, said in the documentation: a subnormal factor is dropped, a tiny normal one is not."""
    dag = dag_of(HALVES, 1, 16, 2, True)
    artifact = build_kernel(task_of(dag), tiled(1, 16, 1, 16), "kernel")
    for factor, wanted in ((2.0**-130, 0.0), (2.0**-120, 2.0**-110)):
        fences = [FencedArray(spec.buffer_shape, spec.dtype) for spec in artifact.args]
        fences[0].array[...], fences[1].array[...] = factor, 2.0**9
        load_kernels([artifact])["kernel"].bind([fence.array for fence in fences], 1)()
        assert (fences[2].array == wanted).all()


@pytest.mark.parametrize("types", [BYTES, ("int8", "int8", "int32"), ("uint8", "uint8", "int32"), HALVES])
def test_a_target_without_the_instructions_computes_the_same(types: Sequence[str]) -> None:
    target = Target("llvm -mcpu=x86-64-v3")
    task = task_of(dag_of(types, 6, 48, 36, True), target, 32)
    assert ("dot(" in kernel_source(task, tiled(6, 48, 3, 24), "loops")) == (types != HALVES)
    assert ("vpmaddwd" in kernel_source(task, tiled(6, 48, 3, 24), "asm")) == (types != HALVES)
    found, wanted = computed(task, tiled(6, 48, 3, 24))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=36 * 2.0**-23)


@pytest.mark.parametrize(
    ("cpu", "types", "instruction"),
    [
        ("neoverse-n1", ("int8", "int8", "int32"), "sdot"),
        ("neoverse-n1", ("uint8", "uint8", "int32"), "udot"),
        ("neoverse-n1", BYTES, "sdot"),  # the sign of one factor is turned
        ("neoverse-v1", HALVES, "bfdot"),
        ("cortex-a53", BYTES, None),
    ],
)
def test_code_for_arm(cpu: str, types: Sequence[str], instruction: str | None) -> None:
    task = task_of(dag_of(types, 8, 64, 64, True), Target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}"), 16)
    text = kernel_source(task, tiled(8, 64, 4, 16), "asm")
    found = set(re.findall(r"\b(?:sdot|udot|usdot|bfdot)\b", text))
    assert found == ({instruction} if instruction else set())
    assert build_kernel(task, tiled(8, 64, 4, 16), "kernel").object_code[:4] == b"\x7fELF"
