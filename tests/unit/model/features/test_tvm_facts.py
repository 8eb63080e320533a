"""Facts about features that TVM's own tests check (tests/facts/tvm.md).

Values are log2(x + 1) where nothing else is said. Where our column means something else on purpose, a test says what.
"""

from math import log2

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.core.target import HardwareParams
from retune.compiler.model.features import FEATURE_NAMES, extract
from retune.compiler.schedule import primitives as s
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import Annotation, State, replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import load_steps
from retune.compiler.tune.extract import extract_network
from tests.support.workloads import matmul

HARDWARE = HardwareParams(num_cores=4)


def rows_of(state: State) -> list[dict[str, float]]:
    """The features of every statement by name, as they are."""
    table = extract(statement_nests(state), choices_of(state), HARDWARE)[0]
    return [dict(zip(FEATURE_NAMES, map(float, row), strict=True)) for row in table]


def approx(value: float) -> object:
    return pytest.approx(value, abs=1e-5)


def test_features_of_a_matmul_with_every_kind_of_loop() -> None:
    state = State.initial(matmul(512, 512, 512))
    state, (i0, i1) = s.split(state, 2, 0, [16])
    state, (j0, j1) = s.split(state, 2, 2, [8])
    state = s.reorder(state, 2, [0, 2, 4, 3, 1])
    for loop, kind in ((0, "parallel"), (1, "parallel"), (2, "unroll"), (3, "vectorize")):
        state = getattr(s, kind)(state, 2, loop)[0]
    (found,) = rows_of(state)
    assert i0.kind == i1.kind == j0.kind == j1.kind
    # The written buffer comes first, then those read: C, A, B. Theirs has 164 columns, sorts buffers by traffic.
    assert len(FEATURE_NAMES) > 164
    assert [found[f"B{slot}.read_write"] for slot in range(3)] == [1, 0, 0]
    assert found["B0.bytes"] == approx(log2(512**3 * 4 + 1))
    assert found["B2.unique_bytes"] == approx(log2(512**2 * 4 + 1))
    assert found["B0.reuse_dis_iter"] == approx(log2(8 * 16 + 1))
    assert found["B0.reuse_dis_bytes"] == approx(log2((8 * 16 + 8 + 16) * 4 + 1))
    assert found["B0.reuse_ct"] == approx(log2(512 + 1))
    assert found["unroll_num"] == found["vec_num"] == approx(log2(2))
    assert found["parallel_num"] == approx(log2(3))
    assert found["parallel_prod"] == approx(log2(512 * 512 / 16 / 8 + 1))
    assert found["B1.stride"] == approx(log2(512 + 1))
    assert found["B2.stride"] == 0


def test_reuse_distance_of_a_copy_inside_an_inner_loop() -> None:
    a = te.placeholder((64, 32), name="A")
    b = te.compute((64, 32), lambda i, j: a[i, j], "B")
    state = State.initial(ComputeDAG([a, te.compute((64, 32), lambda i, j: b[i, j], "C")]))
    rows = rows_of(s.compute_at(state, 1, 2, 1))
    serial = [
        (row[f"B{slot}.reuse_dis_iter"], row[f"B{slot}.reuse_dis_bytes"])
        for row in rows
        for slot in range(5)
        if row[f"B{slot}.serial_multiple_read_write"] == 1
    ]
    assert serial == [(approx(1.0), approx(log2(16 + 1)))]


GPU_STEPS = """[["CHW", 2, "local"],
    ["SP", 2, 0, 512, [1, 16, 32, 1], 1], ["SP", 2, 5, 512, [4, 1, 1, 16], 1], ["SP", 2, 10, 512, [1, 2], 1],
    ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]], ["FSP", 3, 0, 1, 3], ["FSP", 3, 4, 2, 3],
    ["RE", 3, [0, 4, 1, 5, 2, 6, 3, 7]], ["FU", 3, [0, 1]], ["FU", 3, [1, 2]], ["FU", 3, [2, 3]], ["CA", 2, 3, 2],
    ["CHR", 1, "shared", [2]], ["CA", 2, 3, 6], ["FU", 2, [0, 1]], ["FFSP", 2, 0, [1, 2], 1, 1], ["AN", 2, 1, 6],
    ["CHR", 0, "shared", [3]], ["CA", 1, 4, 6], ["FU", 1, [0, 1]], ["FFSP", 1, 0, [1, 2], 1, 1], ["AN", 1, 1, 6],
    ["AN", 5, 0, 5], ["AN", 5, 1, 4], ["AN", 5, 2, 6], ["PR", 4, 0, "auto_unroll_max_step$1024"]]"""


def test_features_of_a_gpu_matmul_name_its_threads() -> None:
    rows = rows_of(replay(matmul(512, 512, 512), load_steps(GPU_STEPS)))
    assert len(rows) == 4
    for found in rows:
        assert found["is_gpu"] == 1
        # 512 / (16 * 32) by 512 / (4 * 16) blocks, 4 virtual threads, 16 threads.
        assert found["gpu_blocks_x"] == approx(log2(8 + 1))
        assert found["gpu_vthreads"] == approx(log2(4 + 1))
        assert found["gpu_threads_x"] == approx(log2(16 + 1))
        assert found["gpu_threads_y"] == found["gpu_blocks_z"] == approx(log2(1 + 1))
        # A tile of 512 rows of A and one of 64 columns of B, two steps of k each.
        assert found["gpu_shared_bytes"] == approx(log2((512 * 2 + 2 * 64) * 4 + 1))


def test_features_of_a_cpu_program_have_no_threads() -> None:
    for found in rows_of(replay(matmul(64, 64, 64), ())):
        assert not any(value for name, value in found.items() if name == "is_gpu" or name.startswith("gpu_"))


def test_a_flat_matmul_counts_its_operations_and_bytes() -> None:
    rows = rows_of(replay(matmul(128, 128, 128), ()))
    assert len(rows) == 1  # the first values are no statement of their own
    raw = {name: 2.0**value - 1 for name, value in rows[0].items()}
    # Theirs counts an addition and a product and never a multiply-add; ours counts what is executed.
    assert raw["float_mad"] == pytest.approx(128**3, abs=10)
    assert raw["float_addsub"] == raw["float_mul"] == 0
    for slot in range(3):
        assert raw[f"B{slot}.unique_bytes"] == pytest.approx(128 * 128 * 4, abs=10)


def test_a_dense_kernel_of_a_network_counts_its_operations() -> None:
    task = next(task for task in extract_network("mlp", "llvm", 1).tasks if "dense" in task.name)
    rows = rows_of(replay(task.dag, default_steps(task.dag)))
    raw = [{name: 2.0**value - 1 for name, value in row.items()} for row in rows]
    done = sum(row["float_mad"] for row in raw)
    inputs = [tensor.shape for tensor in task.dag.inputs if len(tensor.shape) == 2]
    (rows_in, depth), weight = inputs[0], inputs[1]
    assert done == pytest.approx(rows_in * int(np.prod(weight)), rel=1e-3)
    footprints = sum(row[f"B{slot}.unique_bytes"] for row in raw for slot in range(4))
    assert footprints > (rows_in * depth + np.prod(weight)) * 4


def test_loops_of_no_iterations_are_refused_at_the_definition() -> None:
    with pytest.raises(DefinitionError):
        te.compute((0,), lambda _: te.const(1.0, "float32"))
    with pytest.raises(DefinitionError):
        te.reduce_axis(-1)


def test_strides_of_a_broadcast_scalar() -> None:
    scalar = te.placeholder((), "int8", name="x")
    dag = ComputeDAG([scalar, te.compute((768,), lambda _: scalar[()], "spread")])
    (found,) = rows_of(replay(dag, ()))
    # Theirs gives the scalar a stride of 1; ours, as everything read at one address, 0: neighbors share it.
    assert found["B0.stride"] == approx(log2(1 + 1))
    assert found["B1.stride"] == 0
    assert found["B1.unique_bytes"] == approx(log2(1 + 1))


def test_annotations_of_a_gpu_have_columns() -> None:
    bound = {kind for kind in Annotation if kind.name.startswith(("BLOCK", "THREAD", "VTHREAD"))}
    assert len(bound) == sum(name.startswith(("gpu_blocks", "gpu_threads", "gpu_vthreads")) for name in FEATURE_NAMES)
