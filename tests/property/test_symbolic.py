"""Kernels of programs with symbolic extents compute the definition for any sizes, 0 and 1 included."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.build import build_kernel
from retune.compiler.core.errors import RowLengthError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.expr import Expr, dim_expr
from retune.compiler.ir.stmt import For, Stmt
from retune.compiler.lower import symbolic, symbolic_loops
from retune.compiler.lower.block_placement import Region, regions_of
from retune.compiler.lower.block_plan import BlockPlan
from retune.compiler.lower.symbolic import Unsupported
from retune.compiler.schedule.axis_classes import AxisClass, SymbolicProgram
from retune.compiler.schedule.blocks import BlockSize, origin_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.symbols import symbols_of
from retune.compiler.te.tensor import PlaceholderOp
from tests.support.property.symbolic_programs import (
    PROGRAMS,
    Program,
    build,
    check,
    random_sizes,
    random_symbolic_program,
    run,
)


def _check_seed(seed: int, target: Target | None = None) -> None:
    rng = np.random.default_rng(seed)
    program = random_symbolic_program(rng)
    artifact = build(program, target)
    assert not isinstance(artifact, Unsupported), artifact
    for number in range(6):
        check(artifact, program, random_sizes(rng, program), rng, threads=1 + number % 2)


@pytest.mark.parametrize("seed", range(14))
def test_a_symbolic_kernel_computes_the_definition_for_any_sizes(seed: int) -> None:
    _check_seed(seed)


@pytest.mark.parametrize("seed", range(14, 22))
def test_a_symbolic_kernel_without_masks_computes_the_definition(seed: int) -> None:
    _check_seed(seed, Target("llvm -mcpu=x86-64-v2"))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
def test_thousands_of_symbolic_kernels_compute_the_definition(batch: int) -> None:
    for seed in range(1000 + 100 * batch, 1100 + 100 * batch):
        _check_seed(seed)


def test_the_random_programs_include_every_kind() -> None:
    names = {random_symbolic_program(np.random.default_rng(seed))[-1].name for seed in range(60)}
    assert {"y", "z", "o", "joined", "biased", "masked", "last"} <= names
    assert len(PROGRAMS) == 9


def _product(rows: int, depth: int = 24, columns: int = 70) -> Program:
    x, w = te.placeholder((rows, depth), name="x"), te.placeholder((depth, columns), name="w")
    k = te.reduce_axis(depth, "k")
    attrs = {"layout_free_placeholders": (w,)}
    y = te.compute((rows, columns), lambda i, j: te.sum(x[i, k] * w[k, j], k), "y", attrs)
    return [x, w, te.compute((rows, columns), lambda i, j: te.maximum(y[i, j], 0.0), "z")]


def test_points_that_no_block_covers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_last(known: AxisClass, sizes: Sequence[BlockSize], *_: object) -> list[Region]:
        *regions, last = regions_of(known, sizes)
        return [*regions, replace(last, count=0)] if regions else [last]

    monkeypatch.setattr(symbolic, "regions_of", without_last)
    program, rng = _product(te.symbol("n")), np.random.default_rng(0)
    artifact = build(program)
    assert not isinstance(artifact, Unsupported)
    with pytest.raises(AssertionError):
        check(artifact, program, {"n": 841}, rng, threads=1)


def test_terms_that_no_vector_covers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_tail(loop: For, lanes: For, extent: int, _: HardwareParams) -> Stmt:
        return replace(loop, extent=extent // lanes.extent)

    monkeypatch.setattr(symbolic_loops, "_in_vectors", without_tail)
    n, rng = te.symbol("n"), np.random.default_rng(0)
    x, k = te.placeholder((3, n), name="x"), te.reduce_axis(n, "k")
    program = [x, te.compute((3,), lambda i: te.sum(x[i, k], k), "y")]
    artifact = build(program)
    assert not isinstance(artifact, Unsupported)
    check(artifact, program, {"n": 128}, rng, threads=1)
    with pytest.raises(AssertionError):
        check(artifact, program, {"n": 130}, rng, threads=1)


def _attention(queries: int, keys: int) -> Program:
    q, key = te.placeholder((queries, 4), name="q"), te.placeholder((4, keys), name="key")
    v = te.placeholder((keys, 16), name="v")
    c, r, s, e = te.reduce_axis(4, "c"), *(te.reduce_axis(keys, name) for name in "rse")
    scores = te.compute((queries, keys), lambda x, y: te.sum(q[x, c] * key[c, y], c), "scores")
    largest = te.compute((queries,), lambda x: te.max(scores[x, r], r), "largest")
    raised = te.compute((queries, keys), lambda x, y: te.exp(scores[x, y] - largest[x]), "raised")
    total = te.compute((queries,), lambda x: te.sum(raised[x, s], s), "total")
    shares = te.compute((queries, keys), lambda x, y: raised[x, y] / total[x], "shares")
    return [q, key, v, te.compute((queries, 16), lambda x, y: te.sum(shares[x, e] * v[e, y], e), "o")]


def test_longer_rows_are_in_blocks_of_fewer() -> None:
    program, rng = _attention(te.symbol("n"), te.symbol("m")), np.random.default_rng(0)
    artifact = build(program)
    assert not isinstance(artifact, Unsupported)
    for queries, keys in ((41, 1300), (41, 1600), (9, 6200), (3, 49_088)):
        check(artifact, program, {"n": queries, "m": keys}, rng, threads=2)


def test_rows_that_no_stack_holds_are_an_error() -> None:
    program, rng = _attention(te.symbol("n"), te.symbol("m")), np.random.default_rng(0)
    artifact = build(program)
    assert not isinstance(artifact, Unsupported)
    with pytest.raises(RowLengthError, match=r"no stack holds its rows for the sizes \{'m': 49089, 'n': 2\}"):
        check(artifact, program, {"n": 2, "m": 49_089}, rng, threads=1)


def test_a_softmax_takes_rows_of_any_length() -> None:
    n, rng = te.symbol("n"), np.random.default_rng(0)
    x, first, second = te.placeholder((2, n), name="x"), te.reduce_axis(n, "k"), te.reduce_axis(n, "l")
    largest = te.compute((2,), lambda i: te.max(x[i, first], first), "largest")
    raised = te.compute((2, n), lambda i, j: te.exp(x[i, j] - largest[i]), "raised")
    total = te.compute((2,), lambda i: te.sum(raised[i, second], second), "total")
    program = [x, te.compute((2, n), lambda i, j: raised[i, j] / total[i], "y")]
    artifact = build(program)
    assert not isinstance(artifact, Unsupported)
    for length in (49_000, 49_152, 60_000):
        check(artifact, program, {"n": length}, rng, threads=1)


def test_a_last_row_that_no_block_computes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_early(self: BlockSize, known: AxisClass, index: Expr) -> Expr:
        point = origin_of(known) + index
        assert known.extent is not None
        return te.minimum(point, dim_expr(known.extent - 2)) if self.is_clamped else point

    program, rng = _attention(te.symbol("n"), te.symbol("m")), np.random.default_rng(0)
    monkeypatch.setattr(BlockSize, "point", too_early)
    artifact = build(program)
    assert not isinstance(artifact, Unsupported)
    check(artifact, program, {"n": 32, "m": 20}, rng, threads=1)
    with pytest.raises(AssertionError):
        check(artifact, program, {"n": 41, "m": 20}, rng, threads=1)


@pytest.mark.parametrize(("columns", "tallest"), [(70, 8), (24, 14)])
def test_rows_that_are_left_run_in_tiles_of_their_height(columns: int, tallest: int) -> None:
    program = SymbolicProgram.of(_product(te.symbol("n"), columns=columns), keeps_rows=True)
    plan = BlockPlan.of(program, HardwareParams(num_cores=1, vector_unit_bytes=64), {})
    (rows,) = plan.outer
    first, *smaller = [size.points for size in plan.sizes_of(rows)]
    assert first <= tallest
    assert smaller == list(range(first // 2 if first > 8 else first - 1, 0, -1))


def test_tall_blocks_have_few_smaller_sizes() -> None:
    program = _attention(te.symbol("n"), te.symbol("n"))
    plan = BlockPlan.of(SymbolicProgram.of(program, keeps_rows=False), HardwareParams(2, 64), {})
    rows = plan.outer[0]
    assert rows.extent is not None
    sizes = [size.points for size in replace(plan, sizes={**plan.sizes, rows: BlockSize(84)}).sizes_of(rows)]
    assert sizes == [84, 42, 21, 10, 5, 4, 3, 2, 1]
    # Each part has limits of its own: what is left after it must not make the text of the next twice as long.
    regions = regions_of(rows, map(BlockSize, sizes), {BlockSize(size): (rows.extent, 500) for size in sizes})
    assert len(str(regions[-1].count)) < 1000


def test_a_symbolic_product_has_the_bits_of_the_fixed_product() -> None:
    program, rng = _product(te.symbol("n")), np.random.default_rng(3)
    symbolic_kernel = build(program)
    assert not isinstance(symbolic_kernel, Unsupported)
    for rows in (1, 7, 40, 56):
        tensors = te.instantiate(program, {"n": rows})
        dag = ComputeDAG(tensors)
        hardware = hardware_of(Target.host(), 2)
        task = SearchTask("product", dag, Target.host(), hardware)
        fixed = build_kernel(task, default_steps(dag, hardware), "kernel")
        inputs = {
            tensor: rng.random(tensor.shape, dtype="float32")
            for tensor in tensors
            if isinstance(tensor.op, PlaceholderOp)
        }
        (expected,) = run(fixed, tensors, inputs, {}, 1)
        for threads in (1, 2):
            (result,) = run(symbolic_kernel, tensors, inputs, {"n": rows}, threads)
            assert result.tobytes() == expected.tobytes()


def test_neighboring_symbols_are_one_axis_of_blocks() -> None:
    batch, length = te.symbol("batch"), te.symbol("length")
    x = te.placeholder((batch, length, 8), name="x")
    y = te.compute((batch, length, 8), lambda b, i, j: x[b, i, j] * 2.0, "y")
    kernel = symbolic.lower_symbolic([x, y], "kernel", hardware_of(Target.host(), 2))
    assert not isinstance(kernel, Unsupported)
    assert [str(param.shape[0]) for param in kernel.params] == ["batch*length", "batch*length"]
    assert kernel.symbols == ("batch", "length")


def test_a_program_that_is_not_taken_says_why() -> None:
    n = te.symbol("n")
    x, k = te.placeholder((n + 1, 5), name="x"), te.reduce_axis(5, "k")
    total = te.compute((n + 1,), lambda i: te.sum(x[i, k], k), "total")
    shorter = te.compute((n,), lambda i: te.exp(total[i]), "shorter")
    kernel = build([x, shorter])
    assert isinstance(kernel, Unsupported)
    assert kernel.reason == "kernel: the axis i runs over arrays of several extents"
    x = te.placeholder((n,), name="x")
    same = te.placeholder((n,), name="x")
    both = te.compute((n,), lambda i: same[i] + x[i], "both")
    kernel = build([x, same, both])
    assert isinstance(kernel, Unsupported)
    assert "one name" in kernel.reason


def test_every_family_of_programs_is_taken() -> None:
    for family in PROGRAMS:
        rng = np.random.default_rng(5)
        program = family(rng)
        while not symbols_of(program):
            program = family(rng)
        assert not isinstance(build(program), Unsupported), family.__name__
