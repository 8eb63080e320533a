"""Whatever the search proposes computes what NumPy says: samples of small computations are compiled and run."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.driver.build import build, build_kernel
from retune.compiler.graph.evaluate import evaluate_node
from retune.compiler.graph.ir import Node
from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import RandomModel
from retune.compiler.ops.winograd import transform_matrices
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.steps import Step, dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from tests.support.attention import attention, attention_of
from tests.support.tiers import long_except
from tests.support.workloads import (
    conv_bn_relu,
    conv_residual_nhwc,
    joined_convolution,
    matmul,
    max_pool,
    min_nm,
    softmax,
    task_of,
    transformed_convolution,
    winograd_nhwc,
    zero_rank_reduce,
)

Array = NDArray[np.float32]

OPTIONS = SearchOptions(population=96, generations=1, prior_ratio=0.2)


def expect_matmul(a: Array, b: Array) -> Array:
    return a @ b


def expect_residual(data: Array, weight: Array, bias: Array, residual: Array) -> Array:
    size, pad = data.shape[1], weight.shape[0] // 2
    padded = np.pad(data, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    total = bias + residual
    for y in range(weight.shape[0]):
        for x in range(weight.shape[1]):
            total = total + padded[:, y : y + size, x : x + size, :] @ weight[y, x]
    return np.asarray(np.maximum(total, 0.0))


def expect_joined(one: Array, other: Array, weight: Array) -> Array:
    data = np.concatenate([one, other], axis=3)
    nothing = np.zeros((), np.float32)
    return expect_residual(data, weight, nothing, nothing)


def expect_bn_relu(data: Array, weight: Array, bias: Array, scale: Array, offset: Array) -> Array:
    padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = (padded.shape[2] - 3) // 2 + 1
    total = np.zeros((1, weight.shape[0], out, out), np.float32)
    for y in range(3):
        for x in range(3):
            window = padded[:, :, y : y + 2 * out - 1 : 2, x : x + 2 * out - 1 : 2]
            total += np.einsum("bcyx,fc->bfyx", window, weight[:, :, y, x])
    return np.asarray(np.maximum((total + bias) * scale + offset, 0.0))


def expect_pool(data: Array) -> Array:
    high, wide = data.shape[1] - 1, data.shape[2] - 1
    windows = [data[:, y : high + y, x : wide + x] for y in (0, 1) for x in (0, 1)]
    return np.asarray(np.max(windows, axis=0))


def expect_softmax(a: Array) -> Array:
    powers = np.exp(a - a.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def expect_winograd(data: Array, weight: Array) -> Array:
    """Of weights in the transformed space; those of the test come from plain ones."""
    a, b, _ = (np.array(matrix, np.float32) for matrix in transform_matrices(4, 3))
    size, tiles = data.shape[1], -(-data.shape[1] // 4)
    padded = np.pad(data, ((0, 0), (1, 4 * tiles + 1 - size), (1, 4 * tiles + 1 - size), (0, 0)))
    result = np.zeros((1, 4 * tiles, 4 * tiles, weight.shape[3]), np.float32)
    for y in range(tiles):
        for x in range(tiles):
            tile = padded[0, 4 * y : 4 * y + 6, 4 * x : 4 * x + 6]
            inside = np.einsum("re,sn,rsc->enc", b, b, tile)
            product = np.einsum("enc,enco->eno", inside, weight)
            result[0, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] = np.einsum("rv,sw,rso->vwo", a, a, product)
    return result[:, :size, :size]


def expect_transformed(data: Array, weight: Array, bias: Array, residual: Array) -> Array:
    tile = weight.shape[0] - 2
    rank = data.ndim - 2
    node = Node(f"winograd_conv{rank}d", ("data", "weight"), ("y",), {"tile": tile, "pads": (1,) * (2 * rank)})
    return np.asarray(np.maximum(evaluate_node(node, [data, weight]) + bias + residual, 0.0))


CASES: dict[str, tuple[ComputeDAG, Callable[..., Array], int]] = {
    "matmul": (matmul(15, 36, 20), expect_matmul, 20),
    "residual": (conv_residual_nhwc(7, 24), expect_residual, 24),
    "prime rows": (matmul(37, 48, 20), expect_matmul, 20),
    "prime rows and columns": (matmul(67, 101, 12), expect_matmul, 20),
    "prime image": (conv_residual_nhwc(37, 8), expect_residual, 16),
    "joined": (joined_convolution(7, (12, 20), 24), expect_joined, 24),
    "joined points": (joined_convolution(7, (24, 40), 24, kernel=1), expect_joined, 24),
    "bn_relu": (conv_bn_relu(1, 9, 4, 6, 3, 2, 1), expect_bn_relu, 16),
    "pool": (max_pool(6, 20), expect_pool, 4),
    "few points": (matmul(4, 6, 64), expect_matmul, 20),
    "softmax": (softmax(3, 40), expect_softmax, 40),
    "min": (min_nm(10, 96), lambda a: np.asarray(a.min(axis=1)), 12),
    "scalar sum": (zero_rank_reduce(128), lambda a: np.asarray(a.sum()), 12),
    "winograd": (winograd_nhwc(1, 9, 8, 16, 1), expect_winograd, 12),
    "transformed": (transformed_convolution(10, (16, 32), 4, ((1, 1), (1, 1))), expect_transformed, 16),
    "transformed images": (
        transformed_convolution(6, (16, 24), 4, ((1, 1),) * 3, depth=(4,), taps=(3,)),
        expect_transformed,
        16,
    ),
    "attention": (attention(48, 2, 40, 16), attention_of, 40),
    "masked attention": (attention(35, 3, 49, 32, masked=True), attention_of, 40),
    "long attention": (attention(60, 1, 1111, 20), attention_of, 24),
    "batch": (transformed_convolution(7, (24, 20), 2, ((1, 1), (1, 1)), batch=2), expect_transformed, 12),
}

QUICK = ("matmul", "bn_relu", "pool", "few points", "scalar sum")


def run(task: SearchTask, steps: tuple[Step, ...], inputs: list[Array]) -> Array:
    """Compile one program and run it on two threads."""
    artifact = build_kernel(task, steps, "kernel")
    kernel = load_kernels([artifact])["kernel"]
    buffers = []
    for spec, value in zip(artifact.args, inputs, strict=False):
        buffers.append(aligned_copy(spec.packing.pack(value) if spec.packing else value))
    result = aligned_array(artifact.args[-1].shape, "float32")
    kernel.bind([*buffers, result], 2)()
    return result


@pytest.mark.parametrize("name", long_except(QUICK, CASES))
def test_proposed_programs_compute_the_definition(name: str) -> None:
    dag, expect, count = CASES[name]
    task = task_of(name, dag)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(tensor.shape).astype(np.float32) for tensor in dag.inputs]
    expected = expect(*inputs)
    candidates = SketchPolicy(task, RandomModel(0), OPTIONS, seed=9).ask(count, 0)
    assert len(candidates) >= min(count, 4)
    for one in candidates:
        found = run(task, load_steps(one.steps), inputs)
        allowed = 1e-5 * max(10.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=allowed, err_msg=one.steps)


def test_a_result_that_another_one_reads_is_written_too() -> None:
    """A product, what is made of it element by element, and its row sums, all of them listed."""
    a, b = te.placeholder((24, 16), name="A"), te.placeholder((16, 32), name="B")
    r, s = te.reduce_axis(16, "r"), te.reduce_axis(32, "s")
    product = te.compute((24, 32), lambda i, j: te.sum(a[i, r] * b[r, j], r), "P")
    scaled = te.compute((24, 32), lambda i, j: product[i, j] * 2.0, "S")
    rest = te.compute((24, 32), lambda i, j: te.maximum(scaled[i, j], 3.0), "R")
    sums = te.compute((24,), lambda i: te.sum(rest[i, s], s), "T")
    dag = ComputeDAG([a, b, product, scaled, sums])
    assert dag.outputs == (product, scaled, sums)
    task = task_of("several", dag)
    policy = SketchPolicy(task, RandomModel(), OPTIONS, seed=3)
    left, right = np.random.default_rng(0).random((2, 24, 16), np.float32)
    right = right.reshape(16, 24)[:, :8].repeat(4, axis=1)
    expected = left @ right
    for candidate in [*policy.ask(24, 0), TaskProgram("", dump_steps(tuple(default_steps(dag))))]:
        function = build(task, load_steps(candidate.steps))
        results = function.outputs()
        function(*function.prepared(left, right), *results, threads=2)
        wanted = (expected, expected * 2, np.maximum(expected * 2, 3.0).sum(axis=1))
        for result, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, want, rtol=1e-4, err_msg=candidate.steps)
