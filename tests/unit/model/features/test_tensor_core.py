"""What the cost model and the first estimate see of products on tensor cores."""

import numpy as np

from retune.compiler.model.features import extract
from retune.compiler.model.features.table import FLAG_NAMES, INDEX
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import AsMatmul
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.program_features import scored_hardware
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from tests.support.tensor_core_products import TF32, product
from tests.support.workloads import GPU


def best_seconds(dag: ComputeDAG, space: SketchSpace) -> float:
    """The least estimate of some sampled programs, in cycles."""
    hardware = scored_hardware(SearchTask("t", dag, TF32, GPU))
    found = []
    for _, group in space.groups(space.sample(np.random.default_rng(0), 256)):
        rows = extract(group.nests, group.choices, hardware, count=len(group.rows))[space.legal(group)]
        found.append(float(np.min(rows[:, 0, INDEX["estimate_program"]])))
    return 2 ** min(found)


def columns(name: str) -> np.ndarray:
    """A column of sampled programs of a product, one number a statement: its factors, itself, and the result."""
    dag = product(512, 512, 512)
    (space, *_) = build_spaces(SearchTask("t", dag, TF32, GPU), SearchOptions())
    assert any(isinstance(step, AsMatmul) for step in space.sketch)
    hardware = scored_hardware(SearchTask("t", dag, TF32, GPU))
    (group,) = (group for _, group in space.groups(space.sample(np.random.default_rng(0), 64)))
    found = extract(group.nests, group.choices, hardware, count=len(group.rows))[space.legal(group)][..., INDEX[name]]
    return found if name in FLAG_NAMES else 2**found - 1


def test_the_statement_that_multiplies_is_marked() -> None:
    marked = columns("gpu_tensor")
    assert set(np.unique(marked)) == {0.0, 1.0}
    np.testing.assert_array_equal(marked.sum(axis=1), 1)


def test_a_thread_holds_its_share_of_a_warps_sums() -> None:
    """Not all of them: at most 255 registers, which are 1020 bytes."""
    held = columns("gpu_local_bytes")
    assert held.max() < 1024
    assert held.min() >= 4 * 16 * 8 / 32


def test_every_statement_of_a_kernel_is_launched_in_the_same_threads() -> None:
    np.testing.assert_allclose(columns("gpu_threads_x")[:, 2:], 32, rtol=1e-3)
    along_y = columns("gpu_threads_y")
    assert along_y.max() > 1


def test_tensor_cores_are_expected_to_be_faster() -> None:
    dag = product(1024, 1024, 1024)
    spaces = build_spaces(SearchTask("t", dag, TF32, GPU), SearchOptions())
    tensor, plain = (
        min(best_seconds(dag, space) for space in spaces if uses == any(isinstance(s, AsMatmul) for s in space.sketch))
        for uses in (True, False)
    )
    assert tensor < plain / 2
