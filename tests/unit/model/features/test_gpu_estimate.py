"""What a warp asks of memory, and what the analytical model makes of it: counted by hand, and in the kernels
themselves.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.gpu_facts import facts_of
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.interval import as_index
from retune.compiler.ir.kernel import INDICES, Kernel
from retune.compiler.ir.stmt import For, If, Let, LoopKind, Stmt, Store
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.model import RandomModel
from retune.compiler.model.features import FEATURE_NAMES, extract
from retune.compiler.model.features.footprint import footprints_of
from retune.compiler.model.features.nest import nest_arrays
from retune.compiler.model.features.table import FLAG_NAMES
from retune.compiler.model.features.warp import warp_access
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, State, replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import Annotate, Split, Step, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.program_features import prior_scores
from retune.compiler.search.spaces import build_spaces
from tests.support.feature_programs import features_of
from tests.support.indices import value_of
from tests.support.ptx.assembler import tiled
from tests.support.tensor_core_products import product, tensor_space, with_lengths
from tests.support.workloads import GPU, gpu_task_of, matmul

BLOCK, THREAD, VECTOR = Annotation.BLOCK_X, Annotation.THREAD_X, Annotation.VECTORIZE
HARDWARE = replace(GPU, num_cores=1)


def found_in(state: State, stage: int = -1) -> dict[str, float]:
    """The unscaled features of one statement."""
    row = extract(statement_nests(state), choices_of(state), HARDWARE)[0, stage]
    return {
        name: float(value) if name in FLAG_NAMES else 2.0 ** float(value) - 1
        for name, value in zip(FEATURE_NAMES, row, strict=True)
    }


def copy(step: int, *, lanes: int = 1, rows: bool = False, n: int = 4096) -> State:
    """y[i] = x[step * i], by threads next to each other; of `rows` each thread has one, of 64."""
    x = te.placeholder((n * step,), name="x")
    dag = ComputeDAG([x, te.compute((n,), lambda i: x[i * step], "y")])
    steps: tuple[Step, ...] = (Split(1, 0, n, (64, lanes)), Annotate(1, 1, THREAD), Annotate(1, 2, VECTOR))
    if rows:
        return replay(dag, (Split(1, 0, n, (64,)), Annotate(1, 0, THREAD)))
    return replay(dag, (*steps, Annotate(1, 0, BLOCK)))


@pytest.mark.parametrize(
    ("state", "read", "written"),
    [
        (copy(1), 4, 4),  # 128 bytes are four sectors
        (copy(1, lanes=4), 16, 16),
        (copy(2), 8, 4),
        (copy(8), 32, 4),
        (copy(100), 32, 4),
        (copy(1, rows=True), 32, 32),
    ],
)
def test_sectors_of_a_warp(state: State, read: int, written: int) -> None:
    (nest,) = (nest_arrays(each, choices_of(state), 1) for each in statement_nests(state))
    write, taken = (warp_access(nest, footprint) for footprint in footprints_of(nest, frozenset(), 64))
    assert (taken.sectors[0], write.sectors[0]) == (read, written)


@dataclass(frozen=True)
class Write:
    """A statement that writes, what is named around it, the conditions it stands under, and how many neighbors each
    thread writes at once.
    """

    store: Store
    lets: tuple[Let, ...] = ()
    conditions: tuple[Expr, ...] = ()
    lanes: int = 1


def writes(stmt: Stmt) -> Iterator[Write]:
    """The statements that write."""
    if isinstance(stmt, Store):
        yield Write(stmt)
        return
    for inner in getattr(stmt, "statements", None) or ([stmt.body] if hasattr(stmt, "body") else []):
        for found in writes(inner):
            if isinstance(stmt, For) and stmt.kind is LoopKind.VECTOR:
                yield replace(found, lanes=stmt.extent)
            elif isinstance(stmt, Let):
                yield replace(found, lets=(stmt, *found.lets))
            elif isinstance(stmt, If):
                yield replace(found, conditions=(stmt.condition, *found.conditions))
            else:
                yield found


def in_kernel(kernel: Kernel, name: str) -> int:
    """Words in the busiest bank, as the first warp writes to a buffer with all loops at their start."""
    found = next(one for one in writes(kernel.body.body) if one.store.buffer.name == name)
    form = as_index(flat_index(found.store.buffer.shape, found.store.indices))
    words: set[int] = set()
    for thread in range(min(32, kernel.threads)):
        names: dict[Expr, int] = defaultdict(int, {INDICES[LoopKind.THREAD_X]: thread})
        for let in found.lets:
            names[let.var] = value_of(let.value, names)
        if all(value_of(condition, names) for condition in found.conditions):
            words |= {value_of(form, names) + lane for lane in range(found.lanes)}
    return max(Counter(word % 32 for word in words).values())


def test_queues_at_the_banks_are_those_of_the_kernels() -> None:
    dag = matmul(64, 64, 64)
    (space,) = build_spaces(gpu_task_of("m", dag), SearchOptions())
    checked = 0
    for _, group in space.groups(space.sample(np.random.default_rng(4), 40)):
        for row in group.rows[space.legal(group)][:20]:
            state = replay(dag, space.steps(row))
            (kernel,) = lower_for_gpu(state, "k", GPU).kernels
            nests = statement_nests(state)
            arrays = [nest_arrays(each, choices_of(state), 1) for each in nests]
            local = frozenset(write.tensor for nest in nests if nest.attached for write in nest.writes)
            for nest in arrays:
                name = nest.source.op.name
                if name.endswith(".shared"):
                    access = warp_access(nest, footprints_of(nest, local, 64)[0])
                    assert access.conflicts[0] == in_kernel(kernel, name), (name, str(kernel))
                    checked += 1
    assert checked > 20


@pytest.mark.parametrize(("points", "together"), [(1, 1), (2, 2), (4, 4), (8, 4)])
def test_neighbors_of_a_register_tile_are_read_at_once(points: int, together: int) -> None:
    """As the code has it: so many of a row of B in each load, while of A four are read along the sum."""
    task, steps = tiled(points)
    state = replay(task.dag, steps)
    nests = statement_nests(state)
    local = frozenset(write.tensor for nest in nests if nest.attached for write in nest.writes)
    product = next(found for found in (nest_arrays(each, choices_of(state), 1) for each in nests) if any(found.reduce))
    read = {
        footprint.tensor.op.name: warp_access(product, footprint).width[0]
        for footprint in footprints_of(product, local, 64)
    }
    assert (read["A.shared"], read["B.shared"]) == (16, 4 * together)
    text = ptx(lower_for_gpu(state, "k", GPU), task.target)
    for steps_together, loads in ((4, points), (together, 4 * points // together)):
        width = f"ld.shared.v{steps_together}." if steps_together > 1 else "ld.shared.b32"
        assert text.count(width) >= loads
    assert text.count("ld.shared") % (points + 4 * points // together) == 0


@pytest.mark.parametrize("points", [1, 2, 4])
def test_what_threads_fetch_together_is_fetched_once(points: int) -> None:
    """Blocks of 8 x 8 threads fetch 4 columns of A, half a sector each, and 4 rows of B for their tile at a time."""
    found, _ = features_of(*tiled(points))
    blocks = 256 // (8 * points)
    for name, wasted in (("A.shared", 2), ("B.shared", 1)):
        assert found[name]["gpu_sector_bytes"] == pytest.approx(wasted * 4 * 256 * 64 * blocks, rel=1e-3)
    assert found["A.shared"]["estimate_cycles"] == found["B.shared"]["estimate_cycles"] > 0


@pytest.mark.parametrize(("tile", "times"), [(32, 32), (128, 8)])
def test_tiles_for_tensor_cores_are_fetched_once(tile: int, times: int) -> None:
    """Of a product of 1024 each factor is read once for every tile along the other."""
    target = Target("cuda -arch=sm_90")
    task = SearchTask("m", product(1024, 1024, 1024), target, hardware_of(target, 1))
    space = tensor_space(task.dag, target, task.hardware)
    warps = 1 if tile == 32 else 2
    length = tile // warps
    lengths = {"rows": length, "columns": length, "row_warps": warps, "column_warps": warps, "steps": 2, "depth": 3}
    found, _ = features_of(task, with_lengths(space, **lengths))
    for name in ("C.left.shared", "C.right.shared"):
        assert found[name]["gpu_sector_bytes"] == pytest.approx(2 * 1024 * 1024 * times, rel=1e-3)


def test_analytical_model_prefers_large_tiles() -> None:
    target = Target("cuda -arch=sm_90")
    task = SearchTask("m", product(4096, 4096, 4096), target, hardware_of(target, 1))
    space = tensor_space(task.dag, target, task.hardware)
    large = {"rows": 64, "columns": 64, "row_warps": 2, "column_warps": 2, "steps": 2, "depth": 3}
    small = {"rows": 32, "columns": 32, "row_warps": 1, "column_warps": 1, "steps": 1, "depth": 4}
    (_, first), (_, second) = (features_of(task, with_lengths(space, **lengths)) for lengths in (large, small))
    assert first > 1.5 * second


def test_neighbors_are_faster_than_rows_and_few_threads_slower_than_many() -> None:
    near, far = (found_in(copy(step, n=1 << 20))["estimate_cycles"] for step in (1, 32))
    assert far > 2 * near
    n = 1 << 20
    x = te.placeholder((n,), name="x")
    dag = ComputeDAG([x, te.compute((n,), lambda i: x[i] * 2.0, "y")])

    def spread(threads: int) -> float:
        steps = (Split(1, 0, n, (threads,)), Annotate(1, 0, BLOCK), Annotate(1, 1, THREAD))
        return found_in(replay(dag, steps))["estimate_cycles"]

    assert spread(4) > 1.15 * spread(256)


def test_a_long_copy_takes_as_long_as_memory_does() -> None:
    n = 1 << 26
    x = te.placeholder((n,), name="x")
    dag = ComputeDAG([x, te.compute((n,), lambda i: x[i] * 2.0, "y")])
    steps = (Split(1, 0, n, (256,)), Annotate(1, 0, BLOCK), Annotate(1, 1, THREAD))
    facts = facts_of("")
    wanted = 2 * 4 * n / facts.bandwidth * facts.clock
    assert found_in(replay(dag, steps))["estimate_cycles"] == pytest.approx(wanted, rel=0.3)


def test_columns_of_a_launch() -> None:
    found = found_in(copy(1))
    facts = facts_of("")
    assert found["gpu_blocks_x"] == pytest.approx(64)
    assert found["gpu_threads_x"] == pytest.approx(64)
    assert found["gpu_waves"] == pytest.approx(1)
    assert found["gpu_active_warps"] == pytest.approx(2)  # a block on each of 64 multiprocessors
    assert found["gpu_registers"] == pytest.approx(32)
    assert found["gpu_sector_bytes"] == pytest.approx(2 * 4 * 4096)
    assert found["gpu_bank_conflicts"] == 0
    assert facts.multiprocessors > 64


def test_analytical_model_prefers_reuse_of_fetched_tiles() -> None:
    """Of sampled matmuls those that are guessed to be fastest have blocks of many threads, and tiles of many points."""
    dag = matmul(1024, 1024, 1024)
    task = gpu_task_of("m", dag)
    (space,) = build_spaces(task, SearchOptions())
    rows = space.sample(np.random.default_rng(0), 400)
    scores, threads, tiles = [], [], []
    for _, group in space.groups(rows):
        good = space.legal(group)
        features = extract(group.nests, group.choices, HARDWARE, count=len(group.rows))
        scores.append(prior_scores(features, dag.flop_count, HARDWARE)[good])
        threads.append((2.0 ** features[:, -1, FEATURE_NAMES.index("gpu_threads_x")] - 1)[good])
        tiles.append((2.0 ** features[:, -1, FEATURE_NAMES.index("gpu_local_bytes")] - 1)[good] / 4)
    score, thread, tile = (np.concatenate(each) for each in (scores, threads, tiles))
    best = np.argsort(score)[-20:]
    assert 0.05 < score.max() < 1.5
    assert np.median(score) < 0.6 * score.max()
    assert np.median(thread[best]) >= 64
    assert 16 <= np.median(tile[best]) <= 255  # points that a thread's registers hold


def test_first_batch_is_led_by_the_analytical_model() -> None:
    task = gpu_task_of("m", matmul(512, 512, 512))
    options = SearchOptions(population=256, generations=1, eps_greedy=0.0)
    policy = SketchPolicy(task, RandomModel(), options)

    def guessed(steps: tuple[Step, ...]) -> float:
        state = replay(task.dag, steps)
        features = extract(statement_nests(state), choices_of(state), HARDWARE, count=1)
        return float(prior_scores(features, task.flop_count, HARDWARE)[0])

    asked = [guessed(load_steps(program.steps)) for program in policy.ask(8, 0)]
    (space,) = policy.spaces
    drawn = [guessed(space.steps(row)) for row in space.sample(np.random.default_rng(1), 24)]
    assert np.median(asked) > 2 * np.median(drawn)
