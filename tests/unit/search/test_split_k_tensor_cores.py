"""Products on tensor cores whose long sums are cut into parts, since there are too few tiles for the GPU."""

from itertools import pairwise

import numpy as np
import pytest

from retune.compiler.core.gpu_facts import facts_of
from retune.compiler.model.features import extract
from retune.compiler.model.features.table import INDEX
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import AsMatmul, ComputeAt, Rfactor, Split
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.program_features import scored_hardware
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from retune.compiler.te.evaluate import evaluate
from tests.support.property.programs import inputs_of
from tests.support.simt.execute import execute
from tests.support.tensor_core_products import TF32, check_as_threads_and_as_ptx, conv, lowered, product, sampled
from tests.support.workloads import GPU


def task_of(dag: ComputeDAG) -> SearchTask:
    return SearchTask("product", dag, TF32, GPU)


def spaces_of(dag: ComputeDAG) -> dict[int, SketchSpace]:
    """The programs on tensor cores, by the number of parts of the sum."""
    found: dict[int, SketchSpace] = {}
    for space in build_spaces(task_of(dag), SearchOptions()):
        steps = space.sketch
        if not any(isinstance(step, AsMatmul) for step in steps):
            continue
        cut = [before for before, step in pairwise(steps) if isinstance(step, Rfactor)]
        parts = [step.extent // int(step.lengths[0] or 0) for step in cut if isinstance(step, Split)]
        found[parts[0] if parts else 1] = space
    return found


@pytest.mark.parametrize(
    ("dag", "parts"),
    [
        (product(64, 64, 2048), [1, 4, 8]),  # one tile: as many as leave each 256 terms
        (product(512, 512, 4096), [1, 2]),  # 64 tiles, of which 108 multiprocessors hold twice their number
        (product(2048, 2048, 4096), [1]),  # tiles enough
        (product(64, 64, 384), [1]),  # too few terms
        (product(64, 64, 2047), [1]),  # no parts of one length
        (product(64, 64, 2048, out="float16"), [1]),  # each part would be rounded
        (conv(7, (256, 64), 3, "float32", "float32"), [1, 4, 8]),  # channels of the window's nine points
    ],
)
def test_how_many_parts_there_are(dag: ComputeDAG, parts: list[int]) -> None:
    assert facts_of("").multiprocessors == 108
    assert sorted(spaces_of(dag)) == parts


def test_the_parts_are_added_up_inside_of_what_reads_the_sum() -> None:
    dag = product(16, 16, 512, "float32", relu=True)
    space = spaces_of(dag)[2]
    assert any(isinstance(step, ComputeAt) and step.stage == 4 for step in space.sketch)
    (steps,) = list(sampled(space, 1))[:1]
    function = lowered(dag, steps)
    assert len(function.kernels) == 2
    check_as_threads_and_as_ptx(dag, function)


@pytest.mark.parametrize("parts", [2, 4])
def test_a_convolution_in_parts_computes_the_definition(parts: int) -> None:
    dag = conv(3, (128, 16), 3, "float16", "float32")
    values = inputs_of(dag, np.random.default_rng(1))
    (wanted,) = evaluate(dag.outputs, values)
    for steps in list(sampled(spaces_of(dag)[parts], 1))[:1]:
        (found,) = execute(lowered(dag, steps), [values[tensor] for tensor in dag.inputs])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))


def test_a_row_is_found_again_from_its_steps() -> None:
    space = spaces_of(product(64, 64, 2048))[8]
    for row in space.sample(np.random.default_rng(0), 10):
        found = space.row_of(space.steps(row))
        assert found is not None
        np.testing.assert_array_equal(found, row)


def test_parts_are_expected_to_be_faster_where_a_sum_is_long() -> None:
    """A second kernel costs two microseconds more; one tile of 64 x 64 takes longer for 32768 terms."""
    dag = product(64, 64, 32768)

    def least(space: SketchSpace) -> float:
        hardware = scored_hardware(task_of(dag))
        found = []
        for _, group in space.groups(space.sample(np.random.default_rng(0), 256)):
            rows = extract(group.nests, group.choices, hardware, count=len(group.rows))[space.legal(group)]
            found.append(float(np.min(rows[:, 0, INDEX["estimate_program"]])))
        return 2 ** min(found)

    spaces = spaces_of(dag)
    assert least(spaces[32]) < least(spaces[1]) / 3
