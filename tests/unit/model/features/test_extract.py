"""Feature values against numbers worked out by hand, and families of programs against single ones."""

from collections.abc import Sequence
from itertools import pairwise
from math import log2

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.model.features import FEATURE_NAMES, extract
from retune.compiler.model.features.table import FLAG_NAMES
from retune.compiler.schedule.choices import LoopChoices
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.statements import StageNest, statement_nests
from retune.compiler.schedule.steps import ComputeAt, Step, StorageAlign
from tests.support.feature_programs import HARDWARE, choices, copy_chain, small_tile, tiled_matmul


def values(nests: Sequence[StageNest], picked: LoopChoices, row: int = 0) -> dict[str, float]:
    """Unscaled features of the first program's statement `row`."""
    features = extract(nests, picked, HARDWARE)[0, row]
    return {
        name: float(value) if name in FLAG_NAMES else 2.0 ** float(value) - 1
        for name, value in zip(FEATURE_NAMES, features, strict=True)
    }


def approx(value: float) -> object:
    return pytest.approx(value, rel=3e-6, abs=3e-6)


def test_names_are_unique_and_cover_the_row() -> None:
    features = extract([small_tile()], choices(), HARDWARE)
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)
    assert features.shape == (1, 1, len(FEATURE_NAMES))
    assert features.dtype == np.float32
    assert np.isfinite(features).all()


def test_scaling_is_log2_of_one_more() -> None:
    features = extract([small_tile()], choices(), HARDWARE)[0, 0]
    assert features[FEATURE_NAMES.index("B0.bytes")] == pytest.approx(log2(512**3 * 4 + 1))


def test_buffer_columns_of_a_small_tile() -> None:
    found = values([small_tile()], choices())
    assert [found[f"B{slot}.read_write"] for slot in range(3)] == [1, 0, 0]
    assert found["B0.bytes"] == approx(512**3 * 4)
    assert found["B2.unique_bytes"] == approx(512**2 * 4)
    assert found["B0.loop_multiple_read"] == 1
    assert found["B0.reuse_dis_iter"] == approx(8 * 16)
    assert found["B0.reuse_dis_bytes"] == approx((8 * 16 + 8 + 16) * 4)
    assert found["B0.reuse_ct"] == approx(512)
    assert found["B1.stride"] == approx(512)
    assert found["B2.stride"] == 0
    assert found["B0.bytes_d_reuse_ct"] == approx(512**3 * 4 / 512)
    assert found["B3.bytes"] == 0


def test_lines_skip_each_still_loop_by_its_own_extent() -> None:
    found = values([small_tile()], choices())
    # B stays while i1 (16) runs; then j1 walks along a line of 16 floats.
    assert found["B2.lines"] == approx(512**3 / 16 / 16)
    # A moves with i1 by whole rows.
    assert found["B1.lines"] == approx(512**3)
    assert found["B0.unique_lines"] == approx(512 * 512 / 16)


def test_annotations_and_positions() -> None:
    found = values([small_tile()], choices())
    assert found["unroll_num"] == approx(1)
    assert found["unroll_prod"] == approx(512)
    assert found["unroll_inner_reduce"] == 1
    assert found["vec_num"] == approx(1)
    assert found["vec_len"] == approx(8)
    assert (found["vec_inner_spatial"], found["vec_outer_spatial"]) == (1, 0)
    assert found["parallel_num"] == approx(2)
    assert found["parallel_prod"] == approx(512 * 512 / 16 / 8)
    assert found["parallel_outer_spatial"] == 1


def test_operation_counts_know_multiply_adds() -> None:
    found = values([small_tile()], choices())
    assert found["float_mad"] == approx(512**3)
    assert found["float_mul"] == found["float_addsub"] == found["int_mad"] == 0
    assert found["outer_prod"] == approx(512**3)


def test_a_choice_means_the_same_as_an_annotation() -> None:
    chosen = values([small_tile(annotated=False)], choices(parallel=2))
    marked = values([small_tile()], choices())
    for name in ("parallel_num", "parallel_prod", "parallel_len", "parallel_chunks"):
        assert chosen[name] == marked[name]


def test_serial_reuse_between_statements_that_share_loops() -> None:
    producer, consumer = copy_chain()
    found = values([producer, consumer], choices(), row=1)
    assert found["B1.serial_multiple_read_write"] == 1
    assert found["B1.reuse_dis_iter"] == approx(1)
    assert found["B1.reuse_dis_bytes"] == approx(16)
    assert found["B1.local"] == 1
    written = values([producer, consumer], choices(), row=0)
    assert written["B0.local"] == 1
    assert written["alloc_size"] == approx(4)
    assert written["alloc_outer_prod"] == approx(64 * 32)
    assert written["alloc_recompute"] == approx(1)


def test_padding_between_rows_is_part_of_strides_and_sizes() -> None:
    x = te.placeholder((64, 32), name="x")
    a = te.compute((64, 32), lambda i, j: x[i, j] + 1.0, "a")
    dag = ComputeDAG([x, te.compute((32, 64), lambda j, i: a[i, j] * 2.0, "turned")])

    def found(*steps: Step) -> tuple[dict[str, float], dict[str, float]]:
        nests = statement_nests(replay(dag, steps))
        return values(nests, choices(), row=0), values(nests, choices(), row=1)

    (plain, plain_reader), (padded, reader) = found(), found(StorageAlign(1, 0, 32, 5))
    assert (plain_reader["B1.stride"], reader["B1.stride"]) == (approx(32), approx(37))
    assert plain["B0.unique_lines"] == approx(64 * 32 * 4 / 64)
    # A row of 32 elements is two lines: none runs on into the next.
    assert padded["B0.unique_lines"] == approx(64 * 2)
    assert padded["B0.unique_bytes"] == plain["B0.unique_bytes"]
    inside = (ComputeAt(1, 2, 0), StorageAlign(1, 1, 4, 3))
    assert found(inside[0])[0]["alloc_size"] == approx(64 * 4)
    assert found(*inside)[0]["alloc_size"] == approx(64 * 3 * 4)


def test_register_tile_with_remainder() -> None:
    found = values([tiled_matmul((8, 8, 1, 8), (2, 8, 1, 32), (64, 8))], choices(2, 1, 64))
    assert found["tile_rows"] == approx(8)
    assert found["tile_vectors"] == approx(2)
    assert found["tile_accumulators"] == approx(16)
    assert found["tile_fits"] == 1
    assert found["tile_idle_lanes"] == 0
    # No real loop lies between the two parts of k: i.2 and j.2 have extent 1.
    assert found["tile_reduction"] == approx(512)
    assert found["tile_broadcasts"] == approx(8)
    assert found["tile_vector_loads"] == approx(2)
    assert found["tile_loads_per_fma"] == approx(10 / 16)
    # 16 operations fit four times into 64, but k.1 is unrolled whole or not at all.
    assert found["tile_straight_line"] == approx(16)
    assert found["unroll_num"] == 0
    assert values([tiled_matmul((8, 8, 1, 8), (2, 8, 1, 32), (64, 8))], choices(2, 1, 128))["unroll_prod"] == approx(8)

    odd = values([tiled_matmul((64, 1, 1, 8), (2, 1, 10, 25), (16, 32), n=500)], choices(0, 1))
    assert odd["tile_vectors"] == approx(2)
    assert odd["tile_remainder_lanes"] == approx(9)
    assert odd["tile_idle_lanes"] == approx(7 / 16)
    assert odd["tile_reduction"] == approx(32)


@pytest.mark.parametrize(
    ("n", "rows", "conflicts"),
    [
        (1024, 8, 0),  # rows of 4 KiB: eight lines fill a set
        (1024, 16, 16),
        (2048, 16, 16),
        (512, 16, 0),  # rows of 2 KiB lie in two sets
        (512, 32, 32),
        (768, 32, 0),  # rows of 3 KiB lie in four
        (1000, 40, 0),  # rows end within a line
    ],
)
def test_rows_of_a_tile_evict_each_other_at_distances_of_a_power_of_two(n: int, rows: int, conflicts: int) -> None:
    nest = tiled_matmul((n // rows, 1, 1, rows), (n // 8, 1, 1, 8), (n // 8, 8), n=n)
    assert values([nest], choices(0, 1))["tile_conflicts"] == approx(conflicts)


def test_tile_that_spills() -> None:
    found = values([tiled_matmul((32, 1, 1, 16), (8, 1, 1, 64), (64, 8))], choices(0, 1))
    assert found["tile_accumulators"] == approx(64)
    assert found["tile_fits"] == 0
    # 64 accumulators, a row of four vectors of B and the element of A, in 32 registers.
    assert found["tile_spilled"] == approx(37)


@pytest.mark.parametrize(
    ("rows", "length", "spilled"),
    [(7, 64, 1), (14, 32, 0), (8, 32, 0), (4, 64, 0), (6, 64, 0), (15, 32, 1), (1, 64, 0)],
)
def test_a_tile_needs_registers_for_its_operands(rows: int, length: int, spilled: int) -> None:
    nest = tiled_matmul((4, 1, 1, rows), (8, 1, 1, length), (64, 8))
    found = values([nest], choices(0, 1))
    assert found["tile_accumulators"] == approx(rows * length / 16)
    assert found["tile_spilled"] == approx(spilled)
    assert found["tile_fits"] == (spilled == 0)


def test_without_an_inner_reduction_the_tile_grows_outwards() -> None:
    found = values([tiled_matmul((64, 1, 2, 4), (16, 1, 2, 16), (512, 1))], choices(0, 1))
    assert found["tile_rows"] == approx(2 * 4 * 2)
    assert found["tile_reduction"] == approx(512)


def test_parallel_imbalance_is_chunks_over_rounds_of_threads() -> None:
    found = values([tiled_matmul((3, 1, 1, 1), (1, 1, 1, 3), (3, 1), n=3)], choices(1, 1))
    assert found["parallel_chunks"] == approx(3)
    assert found["parallel_imbalance"] == approx(4 / 3)
    assert found["parallel_grain"] == approx(18)
    assert found["parallel_time"] == approx(36)


def test_packed_weights_are_read_line_by_line() -> None:
    tiles = ((8, 8, 1, 8), (2, 8, 1, 32), (64, 8))
    plain = values([tiled_matmul(*tiles)], choices(2, 1))
    packed = values([tiled_matmul(*tiles, packed=True)], choices(2, 1))
    assert (plain["B2.packed"], packed["B2.packed"]) == (0, 1)
    assert packed["B2.unique_lines"] == plain["B2.unique_lines"] == approx(512 * 512 / 16)
    narrow = ((64, 1, 1, 8), (64, 1, 1, 8), (64, 8))
    assert (
        values([tiled_matmul(*narrow, packed=True)], choices(0, 1))["working_set_1"]
        < (values([tiled_matmul(*narrow)], choices(0, 1))["working_set_1"])
    )


def test_working_sets_and_traffic_of_a_tiled_matmul() -> None:
    found = values([tiled_matmul((4, 8, 1, 16), (4, 4, 1, 32), (8, 64))], choices(0, 1))
    lines = 16 * 4 + 64 * 2 + 16 * 2  # A: 16 rows of 64; B: 64 rows of 32; C: 16 rows of 32 floats
    assert found["working_set_1"] == approx(lines * 64)
    # All three matrices fit into 8 MiB, so each is moved once.
    assert found["traffic_8m"] == approx(3 * 512 * 512 * 4)
    assert found["intensity_8m"] == approx(2 * 512**3 / (3 * 512 * 512 * 4))
    assert found["traffic_16k"] > found["traffic_256k"] > found["traffic_8m"]


def test_intensity_rises_to_that_of_the_whole_statement() -> None:
    found = values([small_tile()], choices())
    curve = [found[f"arith_intensity_curve_{point}"] for point in range(10)]
    assert curve[9] == approx(2 * 512**3 / (3 * 512 * 512 * 4))
    assert all(low <= high * (1 + 1e-5) for low, high in pairwise(curve))


def test_estimate_of_a_tile_that_runs_at_the_limit_of_the_machine() -> None:
    found = values([tiled_matmul((4, 8, 2, 8), (4, 4, 1, 32), (8, 64))], choices(0, 1))
    # 16 accumulators: two vector operations a cycle and 0.6 cycles a step, and per 8x32 tile of 64 steps the moves and
    # 8 cycles around them.
    vector_operations = 512**3 / 16
    tiles = 512**3 / (8 * 32 * 64)
    assert found["estimate_arithmetic"] == approx(vector_operations / 2 + tiles * (64 * 0.6 + 2 * 16 + 8))
    assert found["estimate_program"] == found["estimate_cycles"]
    assert found["estimate_share"] == approx(1)
    halved = values([tiled_matmul((4, 8, 2, 8), (4, 4, 1, 32), (8, 64))], choices(1, 1))
    assert halved["estimate_cycles"] == approx(found["estimate_cycles"] / 2 + 4000)


def test_the_estimate_of_a_program_is_the_sum_over_its_statements() -> None:
    nests = copy_chain()
    rows = [values(nests, choices(), row) for row in range(2)]
    assert rows[0]["estimate_program"] == rows[1]["estimate_program"]
    assert sum(row["estimate_cycles"] for row in rows) == approx(rows[0]["estimate_program"])
    assert sum(row["estimate_share"] for row in rows) == approx(1)


def test_unit_loops_change_nothing() -> None:
    short = values([tiled_matmul((512, 1, 1, 1), (32, 1, 1, 16), (512, 1))], choices(1, 1))
    moved = values([tiled_matmul((512, 1, 1, 1), (1, 32, 1, 16), (512, 1))], choices(1, 1))
    differing = {name for name in short if short[name] != moved[name]}
    assert differing <= {"working_set_4", "vec_middle_spatial"}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_family_equals_its_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 16

    def parts(levels: int) -> tuple[NDArray[np.int64], ...]:
        exponents = rng.multinomial(9, [1 / levels] * levels, size=count)
        return tuple(2 ** exponents[:, level].astype(np.int64) for level in range(levels))

    i, j, k = parts(4), parts(4), parts(2)
    parallel = rng.integers(0, 4, count)
    vector = rng.integers(0, 2, count)
    unroll = rng.choice([0, 16, 64, 512], count)
    family = extract([tiled_matmul(i, j, k)], choices(parallel, vector, unroll), HARDWARE)
    assert family.shape[0] == count
    for at in range(count):
        tiles = [tuple(int(part[at]) for part in axis) for axis in (i, j, k)]
        one = tiled_matmul(tiles[0], tiles[1], tiles[2])
        single = extract([one], choices(int(parallel[at]), int(vector[at]), int(unroll[at])), HARDWARE)
        np.testing.assert_array_equal(family[at], single[0])


def test_whole_numbers_have_an_intensity_as_floats_have() -> None:

    def product(dtype: str, result: str) -> dict[str, float]:
        a, b = te.placeholder((64, 64), dtype, name="A"), te.placeholder((64, 64), dtype, name="B")
        k = te.reduce_axis(64, "k")
        term = lambda i, j: te.cast(result, a[i, k]) * te.cast(result, b[k, j])  # noqa: E731
        dag = ComputeDAG([a, b, te.compute((64, 64), lambda i, j: te.sum(term(i, j), k), "C")])
        return values(statement_nests(replay(dag, ())), choices())

    whole, floats = product("int32", "int32"), product("float32", "float32")
    same = [name for name in FEATURE_NAMES if name.startswith(("parallel_", "arith_intensity", "intensity", "traffic"))]
    assert [whole[name] for name in same] == [floats[name] for name in same]
    assert whole["parallel_grain"] == approx(2 * 64**3)
    assert whole["arith_intensity_curve_9"] == approx(2 * 64**3 / (3 * 4 * 64**2))
    assert product("int8", "int32")["intensity_8m"] > whole["intensity_8m"] > 0


def test_statements_of_a_scan_run_in_every_step() -> None:
    def nests(rows: int) -> tuple[StageNest, ...]:
        x, state = (te.placeholder((rows, 6, 16), name=name) for name in ("x", "state"))
        first = te.compute((1, 6, 16), lambda t, i, j: x[t, i, j], "first")
        update = te.compute((rows, 6, 16), lambda t, i, j: state[t - 1, i, j] * 0.5 + x[t, i, j], "update")
        return statement_nests(replay(ComputeDAG([x, te.scan(first, update, state)]), ()))

    few, many = nests(5), nests(41)
    row = next(row for row, nest in enumerate(few) if nest.op.name == "update")
    found = [values(program, LoopChoices({few[row].stage: 1}, {}, {}), row) for program in (few, many)]
    assert [each["outer_prod"] for each in found] == [approx(4 * 6 * 16), approx(40 * 6 * 16)]
    assert [each["inexact"] for each in found] == [0, 0]
    # Threads divide the rows of a step, and not the steps.
    assert [each["parallel_prod"] for each in found] == [approx(6), approx(6)]
    assert found[1]["estimate_cycles"] > found[0]["estimate_cycles"]
