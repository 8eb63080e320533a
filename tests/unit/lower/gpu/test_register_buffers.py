"""A thread's small buffers live in registers: the loops over them are written out, others are not."""

import shutil

import numpy as np
import pytest

from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.codegen.nvidia.ptxas import assemble
from retune.compiler.core.target import Target
from retune.compiler.ir.expr import Buffer, Load, Var, const
from retune.compiler.ir.stmt import Allocate, For, Let, LoopFunction, LoopKind, Stmt, Store, block, walk_stmt
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.lower.gpu.register_buffers import MOST_BYTES, MOST_STATEMENTS, unroll_register_buffers
from retune.compiler.schedule.state import replay
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from tests.support.workloads import GPU, gpu_task_of, matmul

X, Y = Buffer("x", (64, 64), "float32"), Buffer("y", (64, 64), "float32")
I, J, K, N = Var("i"), Var("j"), Var("k"), Var("n")  # noqa: E741 - as in a formula


def kinds(extent: int, inner: Stmt | None = None, elements: int | None = None) -> dict[str, LoopKind]:
    """How the loops run of a sum over k of `extent` numbers each."""
    c = Buffer("c", (elements or extent,), "float32", "local")
    update = For(I, extent, LoopKind.SERIAL, inner or Store(c, (I,), Load(c, (I,)) + Load(X, (K, I))))
    zero = For(J, extent, LoopKind.SERIAL, Store(c, (J,), const(0.0)))
    body = Allocate(c, block(zero, For(K, 64, LoopKind.SERIAL, update)))
    after = unroll_register_buffers(LoopFunction("f", (X, Y), (), body, 1)).body
    return {str(stmt.var): stmt.kind for stmt in walk_stmt(after) if isinstance(stmt, For)}


def test_loops_over_a_small_buffer_are_written_out_and_others_are_not() -> None:
    assert kinds(8) == {"j": LoopKind.UNROLL, "k": LoopKind.SERIAL, "i": LoopKind.UNROLL}


def test_what_registers_cannot_hold_stays_a_loop() -> None:
    most = MOST_BYTES // 4
    assert set(kinds(most).values()) == {LoopKind.UNROLL, LoopKind.SERIAL}
    assert set(kinds(most + 1).values()) == {LoopKind.SERIAL}


def test_too_much_code_stays_a_loop() -> None:
    c = Buffer("c", (200,), "float32", "local")
    many = [Store(c, (I,), Load(c, (I,)) + Load(X, (K, I))) for _ in range(MOST_STATEMENTS // 200)]
    assert set(kinds(200, block(*many)).values()) == {LoopKind.SERIAL}


def test_an_index_that_is_named_is_followed() -> None:
    c = Buffer("c", (8,), "float32", "local")
    named = Let(N, I // 2, 8, Store(c, (N,), Load(c, (N,)) + Load(X, (K, I))))
    assert kinds(8, named)["i"] is LoopKind.UNROLL


@pytest.mark.parametrize(("limit", "unrolled"), [(0, set()), (7, set()), (8, {"i"}), (511, {"i"}), (512, {"i", "k"})])
def test_loops_of_a_stage_are_written_out_as_far_as_its_limit_allows(limit: int, unrolled: set[str]) -> None:
    update = Store(Y, (K, I), Load(Y, (K, I)) + Load(X, (K, I)))
    body = For(K, 64, LoopKind.SERIAL, For(I, 8, LoopKind.SERIAL, update))
    function = LoopFunction("f", (X, Y), (), body, 1, unroll_limits=(("y", limit),))
    after = unroll_register_buffers(function).body
    found = {str(stmt.var) for stmt in walk_stmt(after) if isinstance(stmt, For) and stmt.kind is LoopKind.UNROLL}
    assert found == unrolled


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="there is no ptxas on the path")
def test_tiles_of_usual_sizes_need_no_memory() -> None:
    """Of sampled products whose threads hold up to 64 sums, in whatever loops, and are few enough for 255 registers."""
    dag = matmul(256, 256, 64)
    (space,) = build_spaces(gpu_task_of("m", dag), SearchOptions())
    seen = 0
    for _, group in space.groups(space.sample(np.random.default_rng(1), 60)):
        for row in group.rows[space.legal(group)]:
            function = lower_for_gpu(replay(dag, space.steps(row)), "k", GPU)
            if function.kernels[0].registers > 64 or function.kernels[0].threads > 256 or seen == 6:
                continue
            seen += 1
            (kernel,) = assemble(ptx(function, Target("cuda", arch="sm_90")), "sm_90").kernels
            assert kernel.stack == 0, f"{kernel}\n{function}"
    assert seen == 6
