"""Hand-written schedules on small shapes: they build, compute what the reference says, and use what they are for."""

import numpy as np
import pytest

from benchmarks.hand_schedules import (
    Schedule,
    convolution,
    depthwise,
    product,
    rows,
    small_image_convolution,
    transposed_convolution,
)
from benchmarks.kernel_cases import CASES, Case
from benchmarks.kernel_peers import peers
from benchmarks.kernel_timing import bound_kernel, scheduled
from benchmarks.problems import (
    Convolution,
    LayerNorm,
    Problem,
    Product,
    Softmax,
    TransposedConvolution,
    moved_bytes,
    random_inputs,
)
from retune.compiler.measure.limit_kernels import stream_kernel
from retune.compiler.te.evaluate import evaluate

SMALL: list[tuple[str, Problem, Schedule]] = [
    ("product", Product(16, 24, 64), product(8, 32)),
    ("batched", Product(8, 5, 32, 3), product(4, 16, batched=True)),
    ("conv", Convolution((4, 14), (5, 64), 3), convolution(7, 32)),
    ("conv 1x1", Convolution((4, 14), (5, 64), 1, stride=2), convolution(14, 32)),
    (
        "conv stride",
        Convolution((4, 14), (3, 32), 7, stride=2),
        convolution(14, 32, inner="rc ry rx x c", unroll_limit=64),
    ),
    ("conv dilated", Convolution((6, 14), (5, 32), 3, dilation=2), convolution(14, 32)),
    ("conv grouped", Convolution((6, 14), (12, 64), 3, groups=4), convolution(14, 16)),
    ("conv epilogue", Convolution((4, 14), (5, 32), 3, epilogue=True), convolution(14, 32)),
    ("conv norm", Convolution((4, 14), (5, 32), 3, epilogue=True, norm=True), convolution(14, 32)),
    ("conv 1-d", Convolution((16,), (6, 32), 3), convolution(8, 32)),
    ("conv 3-d", Convolution((2, 4, 14), (6, 32), 3), convolution(14, 32)),
    ("small image", Convolution((7, 7), (16, 64), 3), small_image_convolution(7, 64, 8)),
    ("depthwise", Convolution((4, 14), (32, 32), 3, groups=32), depthwise(2, 7)),
    ("depthwise, stride", Convolution((3, 14), (32, 32), 3, 2, groups=32), depthwise(1, 7, channels_first=True)),
    ("transposed", TransposedConvolution((8, 16), (5, 32)), transposed_convolution(8, 32)),
    ("softmax", Softmax((6, 100)), rows(1)),
    ("norm", LayerNorm((6, 100)), rows(2)),
    ("norm, shared", LayerNorm((8, 96)), rows(4, 32)),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("problem", "schedule"), [case[1:] for case in SMALL], ids=[case[0] for case in SMALL])
def test_schedules_compute_what_the_definition_says(problem: Problem, schedule: Schedule, threads: int) -> None:
    dag = problem.graph()
    arrays = random_inputs(dag)
    task, steps = scheduled(Case(problem, schedule), dag, threads)
    run, output = bound_kernel(task, steps, arrays, threads)
    output[...] = np.nan
    run()
    np.testing.assert_allclose(output, problem.reference(arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("problem", [case[1] for case in SMALL], ids=[case[0] for case in SMALL])
def test_expressions_and_peers_agree_with_the_reference(problem: Problem) -> None:
    dag = problem.graph()
    arrays = random_inputs(dag)
    wanted = problem.reference(arrays)
    (found,) = evaluate(dag.outputs, {tensor: arrays[tensor.name] for tensor in dag.inputs})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    others = peers(problem, arrays, 1)
    assert "onnxruntime" in others
    for call in others.values():
        call.run()
        np.testing.assert_allclose(call.result(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_case_has_a_schedule_that_fits(name: str) -> None:
    dag = CASES[name].problem.graph()
    _, steps = scheduled(CASES[name], dag, 2)
    assert any(type(step).__name__ == "Annotate" for step in steps)
    assert dag.flop_count > 0


def test_constant_weights_are_packed_and_bytes_counted() -> None:
    dag = Product(16, 24, 64).graph()
    assert moved_bytes(dag) == (4 * (16 * 24 + 24 * 64), 4 * 16 * 64)
    assert len(dag.layout_free) == 1
    assert not Product(16, 24, 64, 2).graph().layout_free


@pytest.mark.parametrize(("read", "written"), [(1 << 16, 1 << 16), (1 << 16, 1 << 12), (1 << 12, 1 << 16)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_stream_moves_about_the_bytes_it_is_asked_for(read: int, written: int, threads: int) -> None:
    run, moved = stream_kernel(read, written, threads)
    run()
    assert moved == pytest.approx(read + written, rel=0.05)
