"""PTX of the kernels of operators: LLVM makes it, and NVIDIA's assembler, where there is one, takes it."""

import re
from pathlib import Path

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.errors import TargetError
from retune.compiler.core.target import Target
from retune.compiler.ir.expr import Buffer, Expr, Load
from retune.compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from retune.compiler.ir.stmt import Allocate, Barrier, LoopFunction, LoopKind, Stmt, Store, block
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, ComputeAt, Fuse, Split
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from tests.support.ptx.assembler import assembled, tiled
from tests.support.simt_operators import OPERATORS
from tests.support.small_computations import doubled, fetched_product
from tests.support.tiers import long_except
from tests.support.workloads import GPU, gpu_task_of

BLOCK, THREAD, VECTOR = Annotation.BLOCK_X, Annotation.THREAD_X, Annotation.VECTORIZE


def fetched() -> DeviceFunction:
    """C = A B in blocks of 16 threads, a row of A being fetched by these together."""
    return lower_for_gpu(fetched_product(), "k", GPU, check=True)


def test_a_kernel_has_blocks_threads_barriers_and_shared_memory(tmp_path: Path) -> None:
    text = ptx(fetched(), Target("cuda"))
    assert ".target sm_70" in text
    assert re.search(r"\.visible \.entry k_kernel0\(", text)
    assert ".maxntid 16" in text
    for register in ("%tid.x", "%ctaid.x"):
        assert register in text
    assert "%tid.y" not in text
    assert len(re.findall(r"bar(rier)?\.sync", text)) >= 2
    assert re.search(r"\.shared \.align 16 \.b8 \S+\[16\];", text)
    assert "st.shared" in text
    assert "ld.shared" in text
    assert "ld.global" in text
    said = assembled(text, tmp_path, "sm_80")
    assert said == "" or "16 bytes smem" in said


def test_shared_buffers_of_any_sizes_lie_without_gaps(tmp_path: Path) -> None:
    """What is aligned less comes first in the code, and would leave gaps if it did in memory."""
    x = Buffer("x", (1280,), "float32")
    buffers = [Buffer(f"s{size}", (size,), "float32", "shared") for size in (40, 1280, 32, 960, 256)]
    thread = INDICES[LoopKind.THREAD_X]
    stores = [Store(each, (thread,), Load(x, (thread,))) for each in buffers]
    loads = [Store(x, (thread + 32 * n,), Load(each, (31 - thread,))) for n, each in enumerate(buffers)]
    body: Stmt = block(*stores, Barrier(), *loads)
    for each in reversed(buffers):
        body = Allocate(each, body)
    kernel = Kernel(LoopFunction("k", (x,), (), body, 1), (1, 1, 1), (32, 1, 1))
    said = assembled(ptx(DeviceFunction("k", (x,), (), 1, (kernel,)), Target("cuda")), tmp_path, "sm_80")
    assert said == "" or f"{sum(each.nbytes for each in buffers)} bytes smem" in said


def test_numbers_of_blocks_and_threads_that_are_one_are_not_read() -> None:
    text = ptx(lower_for_gpu(replay(doubled(8), ()), "k", GPU), Target("cuda"))
    assert "%tid" not in text
    assert "%ctaid" not in text


@pytest.mark.parametrize(
    ("dtype", "words"),
    [("float32", 1), ("int32", 1), ("float16", 1), ("bfloat16", 1), ("int8", 1), ("float64", 2), ("int64", 2)],
)
def test_threads_of_a_warp_hand_each_other_values_of_any_type(dtype: str, words: int, tmp_path: Path) -> None:
    x, k = te.placeholder((4, 64), name="x", dtype=dtype), te.reduce_axis(64, "k")
    dag = ComputeDAG([x, te.compute((4,), lambda i: te.max(x[i, k], k), "y")])
    state = replay(dag, (Split(1, 1, 64, (32,)), Annotate(1, 2, THREAD), Annotate(1, 0, BLOCK)))
    text = ptx(lower_for_gpu(state, "k", GPU, check=True), Target("cuda", arch="sm_80"))
    assert text.count("shfl.sync.down.b32") == 5 * words
    assert "bar.sync" not in text
    assert ".shared" not in text
    assembled(text, tmp_path, "sm_80")


def test_what_all_threads_need_is_handed_to_them_by_the_first() -> None:
    x, k = te.placeholder((4, 96), name="x"), te.reduce_axis(96, "k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], k), "total")
    dag = ComputeDAG([x, te.compute((4, 96), lambda i, j: x[i, j] - total[i], "rest")])
    around = (Split(2, 1, 96, (32,)), Annotate(2, 2, THREAD), Annotate(2, 0, Annotation.THREAD_Y))
    inside = (Split(1, 1, 96, (32,)), Annotate(1, 2, THREAD), ComputeAt(1, 2, 0))
    text = ptx(lower_for_gpu(replay(dag, (*around, *inside)), "k", GPU, check=True), Target("cuda"))
    assert text.count("shfl.sync.idx.b32") == 1


def test_threads_move_vectors_at_once_where_they_are_aligned() -> None:
    """A tile of 32 columns is fetched in fours; one of 3 columns cannot be."""
    for columns, together in ((32, True), (3, False)):
        x = te.placeholder((64, columns), name="x")
        dag = ComputeDAG([x, te.compute((64, columns), lambda i, j, x=x: x[i, j] * 2.0, "y")])
        size = 64 * columns
        steps = (Fuse(1, (0, 1)), Split(1, 0, size, (32, 4)), Annotate(1, 1, THREAD), Annotate(1, 2, VECTOR))
        text = ptx(lower_for_gpu(replay(dag, (*steps, Annotate(1, 0, BLOCK))), "k", GPU, check=True), Target("cuda"))
        assert (re.search(r"ld\.global(\.nc)?\.v4", text) is not None) is together
        assert ("st.global.v4" in text) is together


def test_neighbors_that_a_thread_reads_one_by_one_are_moved_at_once() -> None:
    """A tile of 4 x 4 reads four neighbors of both factors a step, and writes four of the result."""
    task, steps = tiled(4)
    function = lower_for_gpu(replay(task.dag, steps), "k", GPU)
    text = ptx(function, task.target)
    assert "ld.shared.v4" in text
    assert "st.global.v4" in text
    assert any(kernel.dynamic_shared == 0 for kernel in function.kernels)


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90"])
def test_every_gpu_that_is_supported_has_code(arch: str, tmp_path: Path) -> None:
    text = ptx(fetched(), Target("cuda", arch=arch))
    assert f".target {arch}" in text
    if arch not in ("sm_70",):  # newer assemblers have left it behind
        assembled(text, tmp_path, arch)


@pytest.mark.parametrize("name", long_except(["matmul", "depthwise", "softmax", "minimum"], OPERATORS))
def test_every_sketch_of_every_operator_is_assembled(name: str, tmp_path: Path) -> None:
    dag = OPERATORS[name]()
    rng = np.random.default_rng(2)
    for space in build_spaces(gpu_task_of(name, dag), SearchOptions()):
        _, group = next(iter(space.groups(space.sample(rng, 64))))
        row = group.rows[space.legal(group)][0]
        function = lower_for_gpu(replay(dag, space.steps(row)), "kernel", GPU, check=True)
        text = ptx(function, Target("cuda", arch="sm_80"))
        assert text.count(".visible .entry") == len(function.kernels)
        assembled(text, tmp_path, "sm_80")


@pytest.mark.parametrize("annotation", [THREAD, VECTOR])
@pytest.mark.parametrize("dtype", long_except(["float32"], ["float64", "float32", "float16"]))
def test_what_a_library_has_on_a_cpu_is_part_of_the_code(dtype: str, annotation: Annotation, tmp_path: Path) -> None:
    x, y = te.placeholder((8,), dtype, "x"), te.placeholder((8,), dtype, "y")

    def all_of_them(i: te.Axis) -> Expr:
        parts = [te.sin(x[i]), te.acos(x[i]), te.sinh(x[i]), te.exp(x[i]), te.log(x[i]), te.pow(x[i], y[i])]
        return sum(parts, te.erf(x[i])) + te.tanh(x[i]) + te.sigmoid(x[i]) + x[i] % y[i] + x[i] // y[i]

    dag = ComputeDAG([x, y, te.compute((8,), all_of_them, "z")])
    text = ptx(lower_for_gpu(replay(dag, (Annotate(2, 0, annotation),)), "k", GPU), Target("cuda"))
    assert "call" not in text
    assert ".func" not in text
    assembled(text, tmp_path, "sm_80")


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(TargetError, match="sm_12345"):
        ptx(fetched(), Target("cuda", arch="sm_12345"))
    for target in (Target("llvm"), "cuda -arch=sm_90"):
        with pytest.raises(TargetError, match="PTX is made for a Target such as Target"):
            ptx(fetched(), target)  # type: ignore[arg-type]
