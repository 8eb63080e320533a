"""Programs for single loop passes: where each acts, its edges, and where it must not act."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.lower.passes import LoopPass
from retune.compiler.lower.passes.dot_products import group_dot_products
from retune.compiler.lower.passes.flip_signedness import flip_signedness
from retune.compiler.lower.passes.legalize_loops import legalize_loops
from retune.compiler.lower.passes.move_locals import move_locals
from retune.compiler.lower.passes.pack_constants import pack_constants
from retune.compiler.lower.passes.pack_inside import pack_inside
from retune.compiler.lower.passes.partition_loops import partition_loops
from retune.compiler.lower.passes.register_tiles import form_register_tiles
from retune.compiler.lower.passes.reuse_locals import reuse_locals
from retune.compiler.lower.passes.simplify_indices import simplify_indices
from retune.compiler.lower.passes.unroll_locals import unroll_locals
from retune.compiler.lower.passes.vector_reductions import vectorize_reductions
from retune.compiler.lower.passes.vectorize_plain import vectorize_plain
from retune.compiler.lower.passes.widen_buffers import widen_buffers
from retune.compiler.lower.passes.widen_factors import widen_factors
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeAt, Fuse, Pragma, Reorder, Split, Step
from tests.support.small_computations import doubled, matmul, sum_and_peak, window

MIXED = frozenset({("uint8", "int8")})
FORM_TILES = partial(form_register_tiles, vector_bytes=16)
SUM_IN_LANES = partial(vectorize_reductions, vector_bytes=16)
GROUP_MIXED = partial(group_dot_products, native=MIXED)
PLAIN = partial(vectorize_plain, vector_bytes=16)
UNROLL = partial(unroll_locals, vector_bytes=16)
MOVE = partial(move_locals, stack_bytes=1 << 18)
PARALLEL, VECTORIZE = Annotation.PARALLEL, Annotation.VECTORIZE


@dataclass(frozen=True, slots=True)
class PassProgram:
    """A computation under a schedule, and passes, the last of which the case shows."""

    passes: tuple[LoopPass, ...]
    dag: ComputeDAG
    steps: tuple[Step, ...] = ()


def narrow_product(types: Sequence[str], k: int = 8) -> ComputeDAG:
    """C = A B of narrow numbers in 2 rows and 4 columns; B may be packed."""
    left, right, result = types
    a, b, r = te.placeholder((2, k), left, "A"), te.placeholder((k, 4), right, "B"), te.reduce_axis(k, "k")

    def body(i: te.Axis, j: te.Axis) -> Expr:
        return te.sum(te.cast(result, a[i, r]) * te.cast(result, b[r, j]), r)

    return ComputeDAG([a, b, te.compute((2, 4), body, "C", {"layout_free_placeholders": (b,)})])


def transposed_product(dtype: str) -> ComputeDAG:
    """C = A' B of narrow numbers, summed in float32: successive terms of A are in different rows."""
    a, b, r = te.placeholder((8, 2), dtype, "A"), te.placeholder((8, 4), dtype, "B"), te.reduce_axis(8, "k")

    def body(i: te.Axis, j: te.Axis) -> Expr:
        return te.sum(te.cast("float32", a[r, i]) * te.cast("float32", b[r, j]), r)

    return ComputeDAG([a, b, te.compute((2, 4), body, "C")])


def rows_of_sums(read: str) -> ComputeDAG:
    """Sums over elements of a matrix that are no neighbors in memory, or that a choice guards."""
    x, n, k = te.placeholder((64, 64), name="x"), te.placeholder((64,), "int64", "n"), te.reduce_axis(32, "k")
    reads: dict[str, Callable[[Expr], Expr]] = {
        "across_rows": lambda i: x[k, i],
        "every_second": lambda i: x[i, 2 * k],
        "backwards": lambda i: x[i, 63 - k],
        "through_an_index": lambda i: x[i, n[k]],
        "by_a_choice": lambda i: te.if_then_else(k < 7, x[i, k], 0.0),
        "of_no_array": lambda i: te.cast("float32", i + k),
    }
    return ComputeDAG([te.compute((64,), lambda i: te.sum(reads[read](i), k), "y")])


def _row_maxima() -> ComputeDAG:
    x, k = te.placeholder((3, 150), name="x"), te.reduce_axis(150, "k")
    return ComputeDAG([x, te.compute((3,), lambda i: te.max(te.exp(x[i, k]), k), "y")])


def _window_sums() -> ComputeDAG:
    x, a, b = te.placeholder((2, 3, 5), "int32", "x"), te.reduce_axis(3, "a"), te.reduce_axis(5, "b")
    return ComputeDAG([x, te.compute((2,), lambda i: te.sum(x[i, a, b], [a, b]), "y")])


def _sums_of_planes() -> ComputeDAG:
    x, p, q = te.placeholder((2, 3, 16), name="x"), te.reduce_axis(2, "p"), te.reduce_axis(16, "q")
    return ComputeDAG([x, te.compute((3,), lambda i: te.sum(x[p, i, q], [p, q]), "y")])


def _chain_of_rows(again: bool = False) -> ComputeDAG:
    """y is made of b, and b of a, each row by row; y of a too where it is read `again`."""
    x = te.placeholder((2, 1100), name="x")
    a = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "a")
    b = te.compute(x.shape, lambda i, j: te.exp(a[i, j]), "b")
    return ComputeDAG([x, te.compute(x.shape, lambda i, j: b[i, j] * (a[i, j] if again else 2.0), "y")])


def _turned_rows() -> ComputeDAG:
    x = te.placeholder((16, 16), name="x")
    return ComputeDAG([x, te.compute((16, 16), lambda i, j: x[j, i] + 1.0, "y")])


def _smallest() -> ComputeDAG:
    x, k = te.placeholder((8, 3), name="x"), te.reduce_axis(3, "k")
    smaller = te.comm_reducer(lambda a, b: te.if_then_else(a < b, a, b), float("inf"), "smaller")
    return ComputeDAG([x, te.compute((8,), lambda i: smaller(x[i, k], axis=k), "low")])


def _convolution_of_bytes() -> ComputeDAG:
    x, w = te.placeholder((6, 4), "uint8", "x"), te.placeholder((4, 4, 4), "int8", "w")
    kx, kc = te.reduce_axis(4, "kx"), te.reduce_axis(4, "kc")

    def body(i: te.Axis, f: te.Axis) -> Expr:
        return te.sum(te.cast("int32", x[i + kx, kc]) * te.cast("int32", w[kx, kc, f]), [kx, kc])

    return ComputeDAG([x, w, te.compute((3, 4), body, "y")])


def _padded_rows(taps: int = 3, dtype: str = "float16") -> ComputeDAG:
    """Sums over a window of rows that a border of zeros surrounds, in float32."""
    x, k = te.placeholder((8, 16), dtype, "x"), te.reduce_axis(taps, "k")
    inside = te.compute(
        (10, 16), lambda i, j: te.if_then_else(te.all(i >= 1, i < 9), x[i - 1, j], te.const(0, dtype)), "p"
    )
    return ComputeDAG([x, te.compute((8, 16), lambda i, j: te.sum(te.cast("float32", inside[i + k, j]), k), "y")])


def _padded_bytes() -> ComputeDAG:
    """A convolution of bytes along rows that a border surrounds."""
    x, w = te.placeholder((6, 4), "uint8", "x"), te.placeholder((3, 4, 4), "int8", "w")
    inside = te.compute(
        (8, 4), lambda i, c: te.if_then_else(te.all(i >= 1, i < 7), x[i - 1, c], te.const(7, "uint8")), "p"
    )
    kx, kc = te.reduce_axis(3, "kx"), te.reduce_axis(4, "kc")

    def body(i: te.Axis, f: te.Axis) -> Expr:
        return te.sum(te.cast("int32", inside[i + kx, kc]) * te.cast("int32", w[kx, kc, f]), [kx, kc])

    return ComputeDAG([x, w, te.compute((6, 4), body, "y")])


ROWS_INSIDE: tuple[Step, ...] = (Split(2, 1, 8, (4,)), Reorder(2, (1, 3, 0, 2)))
TILE: tuple[Step, ...] = (*ROWS_INSIDE, Annotate(2, 3, VECTORIZE))
DOT_TILE: tuple[Step, ...] = (Reorder(2, (2, 0, 1)), Annotate(2, 2, VECTORIZE))
PAIRS = frozenset({("int16", "int16")})
UNSIGNED, SIGNED = ("uint8", "int8", "int32"), ("int8", "int8", "int32")


def _dots(*types: str, native: frozenset[tuple[str, str]] = MIXED, k: int = 8) -> PassProgram:
    return PassProgram((partial(group_dot_products, native=native),), narrow_product(types, k), DOT_TILE)


def _signs(*types: str) -> PassProgram:
    passes = GROUP_MIXED, FORM_TILES, partial(flip_signedness, native=MIXED, vector_bytes=16)
    return PassProgram(passes, narrow_product(types), DOT_TILE)


def _widened(k: int) -> PassProgram:
    return PassProgram(
        (partial(group_dot_products, native=PAIRS), FORM_TILES, widen_factors), narrow_product(UNSIGNED, k), DOT_TILE
    )


def _wide(k: int, *types: str) -> PassProgram:
    return PassProgram((FORM_TILES, widen_factors), narrow_product(types, k), DOT_TILE)


def _of(loop_pass: LoopPass, dag: ComputeDAG, *steps: Step) -> PassProgram:
    return PassProgram((loop_pass,), dag, steps)


def _packed(*steps: Step) -> PassProgram:
    return PassProgram((pack_constants, pack_inside), matmul(2, 8, 4), steps)


PASS_PROGRAMS: dict[str, PassProgram] = {
    # legalize-loops
    "vector_without_a_guard": _of(legalize_loops, doubled(8), Split(1, 0, 8, (4,)), Annotate(1, 1, VECTORIZE)),
    "vector_under_its_guard": _of(legalize_loops, doubled(10), Split(1, 0, 10, (4,)), Annotate(1, 1, VECTORIZE)),
    "vector_under_a_mask": _of(
        partial(legalize_loops, masks=True), doubled(10), Split(1, 0, 10, (4,)), Annotate(1, 1, VECTORIZE)
    ),
    "mask_over_rows": _of(
        partial(legalize_loops, masks=True),
        matmul(10, 3, 3),
        Reorder(2, (1, 0, 2)),
        Split(2, 1, 10, (4,)),
        Annotate(2, 2, VECTORIZE),
    ),
    "vector_with_a_buffer": _of(legalize_loops, window(), ComputeAt(1, 2, 0), Annotate(2, 0, VECTORIZE)),
    "temporaries_of_lanes": _of(legalize_loops, sum_and_peak(8, 3), Reorder(1, (1, 0)), Annotate(1, 1, VECTORIZE)),
    # partition-loops
    "ragged_in_two_levels": _of(partition_loops, doubled(50), Split(1, 0, 50, (8, 4))),
    "ragged_parallel": _of(partition_loops, doubled(50), Split(1, 0, 50, (16,)), Annotate(1, 0, PARALLEL)),
    "ragged_and_fused": _of(partition_loops, doubled(7), Split(1, 0, 7, (3,)), Fuse(1, (0, 1))),
    "ragged_reduction": _of(partition_loops, matmul(3, 5, 4), Split(2, 1, 5, (2,)), Reorder(2, (1, 0, 3, 2))),
    "no_guards": _of(partition_loops, window(), Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0)),
    # register-tiles
    "tile_with_its_start": _of(FORM_TILES, matmul(2, 8, 4), *TILE),
    "tile_of_unrolled_steps": _of(FORM_TILES, matmul(2, 8, 4), *TILE, Pragma(2, 0, "auto_unroll_max_step$8")),
    "tile_between_steps": _of(FORM_TILES, matmul(2, 2, 4), Split(2, 2, 4, (2,)), Reorder(2, (2, 0, 3, 1))),
    "guarded_update": _of(FORM_TILES, matmul(1, 5, 4), Split(2, 1, 5, (2,)), Reorder(2, (0, 1, 3, 2))),
    "more_rows_than_registers": _of(FORM_TILES, matmul(65, 1, 4), Reorder(2, (2, 0, 1))),
    "two_results_of_a_tile": _of(
        FORM_TILES, sum_and_peak(8, 3), Split(1, 0, 8, (4,)), Reorder(1, (0, 2, 1)), Annotate(1, 2, VECTORIZE)
    ),
    "two_results_of_a_point": _of(FORM_TILES, sum_and_peak(8, 3)),
    "join_by_a_choice": _of(FORM_TILES, _smallest()),
    # pack-constants, pack-inside
    "weight_in_loop_order": _of(pack_constants, matmul(2, 8, 4), *ROWS_INSIDE),
    "weight_of_a_ragged_split": _of(pack_constants, matmul(2, 5, 4), Split(2, 1, 5, (2,))),
    "weight_padded_to_whole_strips": _of(pack_constants, matmul(2, 15, 4), Split(2, 1, 15, (4,))),
    "weight_packed_before": _packed(*ROWS_INSIDE),
    "nothing_to_pack": PassProgram(
        (partial(pack_constants, pads=False), pack_inside), matmul(2, 5, 4), (Split(2, 1, 5, (2,)),)
    ),
    "weight_in_its_layout": _packed(Reorder(2, (2, 0, 1))),
    # dot-products
    "dots_of_four": _dots(*UNSIGNED),
    "dots_of_a_whole_loop": _dots("int8", "uint8", "int32", k=4),
    "dots_of_bfloat16": _dots("bfloat16", "bfloat16", "float32", native=frozenset({("bfloat16", "bfloat16")})),
    "dots_along_channels": PassProgram(
        (GROUP_MIXED,), _convolution_of_bytes(), (Reorder(2, (3, 2, 0, 1)), Annotate(2, 3, VECTORIZE))
    ),
    "dots_of_widened_bytes": _dots("uint8", "uint8", "int32", native=PAIRS),
    "no_dots_of_wide_numbers": _dots("int16", "int16", "int32", native=PAIRS),
    "no_dot_instruction": _dots(*UNSIGNED, native=frozenset()),
    "no_dots_of_six": _dots(*UNSIGNED, k=6),
    "no_dots_in_floats": _dots("uint8", "int8", "float32"),
    "no_dots_of_wide_factors": _dots("int16", "int8", "int32"),
    "no_dots_of_other_types": _dots("bfloat16", "bfloat16", "float32"),
    "no_dots_without_a_vector": PassProgram(
        (GROUP_MIXED,), narrow_product(UNSIGNED), (Reorder(2, (2, 0, 1)),)
    ),
    "no_dots_of_a_ragged_split": PassProgram(
        (GROUP_MIXED,),
        narrow_product(UNSIGNED),
        (Split(2, 2, 8, (3,)), Reorder(2, (2, 3, 0, 1)), Annotate(2, 3, VECTORIZE)),
    ),
    # flip-signedness
    "sign_of_both_factors": _signs(*SIGNED),
    "signs_that_the_target_takes": _signs(*UNSIGNED),
    "signs_in_the_other_order": _signs("int8", "uint8", "int32"),
    # vector-reductions
    "maxima_of_rows": _of(SUM_IN_LANES, _row_maxima()),
    "sums_of_windows": _of(SUM_IN_LANES, _window_sums()),
    "sums_of_planes": _of(partial(vectorize_reductions, vector_bytes=64), _sums_of_planes(), Reorder(1, (1, 0, 2))),
    "sums_of_few": _of(SUM_IN_LANES, matmul(4, 4, 7)),
    "sums_in_a_vector": _of(SUM_IN_LANES, matmul(4, 64, 64), Reorder(2, (0, 1, 2)), Annotate(2, 1, VECTORIZE)),
    **{
        f"sums_{read}": _of(SUM_IN_LANES, rows_of_sums(read))
        for read in ("across_rows", "every_second", "backwards", "through_an_index", "by_a_choice", "of_no_array")
    },
    # widen-buffers, widen-factors
    "padding_of_halves": _of(widen_buffers, _padded_rows()),
    "padding_read_once": _of(widen_buffers, _padded_rows(taps=1)),
    "padding_of_floats": _of(widen_buffers, _padded_rows(dtype="float32")),
    "padding_of_bytes": PassProgram(
        (partial(group_dot_products, native=PAIRS), widen_buffers),
        _padded_bytes(),
        (Reorder(3, (2, 3, 0, 1)), Annotate(3, 3, VECTORIZE)),
    ),
    "factor_of_bytes": _widened(40),
    "factor_of_few_bytes": _widened(2),
    "factor_of_halves": _wide(40, "float16", "float16", "float32"),
    "factor_of_few_halves": _wide(3, "bfloat16", "float32", "float32"),
    "factor_of_floats": _wide(40, "float32", "float16", "float32"),
    "factor_of_distant_halves": PassProgram(
        (FORM_TILES, widen_factors),
        transposed_product("float16"),
        (Reorder(2, (2, 0, 1)), Annotate(2, 2, VECTORIZE)),
    ),
    # reuse-locals
    "rows_over_rows": _of(reuse_locals, _chain_of_rows(), ComputeAt(2, 3, 0), ComputeAt(1, 3, 0)),
    "rows_read_again": _of(reuse_locals, _chain_of_rows(again=True), ComputeAt(2, 3, 0), ComputeAt(1, 3, 0)),
    # move-locals
    "large_rows": _of(
        partial(move_locals, stack_bytes=24000),
        _chain_of_rows(),
        ComputeAt(2, 3, 0),
        ComputeAt(1, 3, 0),
        Annotate(3, 0, PARALLEL),
    ),
    "small_rows": _of(MOVE, _chain_of_rows(), ComputeAt(2, 3, 0), ComputeAt(1, 3, 0)),
    # vectorize-plain
    "rows_in_order": _of(PLAIN, matmul(4, 16, 8), Reorder(2, (0, 2, 1))),
    "short_rows": _of(partial(vectorize_plain, vector_bytes=64), matmul(4, 8, 8), Reorder(2, (0, 2, 1))),
    "rows_turned": _of(PLAIN, _turned_rows()),
    "rows_in_a_vector": _of(PLAIN, doubled(64), Split(1, 0, 64, (8,)), Annotate(1, 1, VECTORIZE)),
    # unroll-locals, simplify-indices
    "small_local_buffer": _of(
        UNROLL, window(), Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0), Annotate(2, 1, VECTORIZE)
    ),
    "no_local_buffer": _of(UNROLL, window()),
    "no_quotients": _of(simplify_indices, matmul(4, 4, 4)),
}  # fmt: skip
