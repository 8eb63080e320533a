"""Random products of bytes: every instruction set, schedule and number of threads gives the bits of the definition.

The definition is NumPy's, in integers of 64 bits: a sum of (x - x zero) * (w - w zero), multiplied by (x scale * w
scale) / y scale in float32, rounded to even, shifted by the zero point and clipped.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from retune.compiler import te
from retune.compiler.codegen.dot_instructions import dot_instructions
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Attribute, Graph, Value
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.lower.passes import flip_signedness
from retune.compiler.model import RandomModel
from retune.compiler.ops import OPS
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from tests.support.property.checks import checked
from tests.support.property.graphs import full_inputs
from tests.support.tiers import long_except

_NEEDS = {"x86-64-v2": "sse4.2", "haswell": "avx2", "skylake-avx512": "avx512bw", "cascadelake": "avx512vnni"}
_TARGETS = ["llvm", *(f"llvm -mcpu={cpu}" for cpu, need in _NEEDS.items() if llvm.get_host_cpu_features().get(need))]
_OPTIONS = SearchOptions(population=16, generations=1, max_location_variants=3)


@dataclass(frozen=True, slots=True)
class Layer:
    """A quantized layer, its inputs and the bits of its result."""

    graph: Graph
    inputs: dict[str, Array]
    expected: Array


def _bytes(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    info = np.iinfo(dtype)
    # Extremes often: their products are the ones that saturate.
    drawn = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.3, rng.choice(np.array([info.min, info.max], dtype), shape), drawn)


class _Drawn:
    """The types, scales and zero points of a layer."""

    def __init__(self, rng: np.random.Generator, channels: int) -> None:
        self.rng = rng
        self.left, self.right, self.result = (str(rng.choice(["uint8", "int8"])) for _ in range(3))
        self.scales = [np.asarray(rng.uniform(1e-3, 1e-1), "float32") for _ in range(2)]
        per_channel = channels if rng.random() < 0.7 else 1
        self.weight_scale = rng.uniform(1e-3, 1e-1, per_channel).astype("float32")
        self.zeros = [
            np.array(int(rng.integers(60)) if rng.random() < 0.7 else 0, name) for name in (self.left, self.result)
        ]
        # The difference to a weight must fit a byte.
        self.weight_zero = np.array(128 if self.right == "uint8" else 0, self.right)

    def dequantized(self, builder: GraphBuilder, name: str, scale: Array, zero: Array, axis: int = 0) -> str:
        scale = np.asarray(scale, "float32")
        zeros = np.broadcast_to(zero, scale.shape).copy() if scale.ndim else zero
        operands = [name, builder.constant(scale, "scale"), builder.constant(zeros, "zero")]
        return builder.emit("dequantize", operands, {"axis": axis})

    def entered(self, builder: GraphBuilder, x: Array) -> tuple[str, Array]:
        """The dequantized input "x", and its array: bytes, or floats that are quantized to these bytes."""
        scale, zero = self.scales[0], self.zeros[0]
        if self.rng.random() < 0.5:
            name = builder.input(Value("x", x.shape, self.left))
            return self.dequantized(builder, name, scale, zero), x
        name = builder.input(Value("x", x.shape, "float32"))
        operands = [name, builder.constant(np.asarray(scale), "scale"), builder.constant(zero, "zero")]
        name = builder.emit("quantize", operands, {"axis": 0})
        return self.dequantized(builder, name, scale, zero), (x.astype("float32") - np.float32(zero)) * scale

    def quantized(self, builder: GraphBuilder, name: str) -> str:
        operands = [
            name,
            builder.constant(np.asarray(self.scales[1]), "scale"),
            builder.constant(self.zeros[1], "zero"),
        ]
        return builder.emit("quantize", operands, {"axis": 0})

    def requantized(self, sums: Array, scale: Array) -> Array:
        """The definition; `scale` is broadcast to the sums."""
        factor = (self.scales[0] * scale) / self.scales[1]
        assert factor.dtype == np.float32
        return self.clipped(np.rint(sums.astype("float32") * factor))

    def clipped(self, whole: Array) -> Array:
        """Rounded numbers with the zero point, in the type of the result."""
        info = np.iinfo(self.result)
        return np.clip(whole.astype(np.float64) + int(self.zeros[1]), info.min, info.max).astype(self.result)


def _dense(rng: np.random.Generator) -> Layer:
    m, k, n = (int(rng.integers(1, most)) for most in (40, 90, 70))
    drawn = _Drawn(rng, n)
    x, w = _bytes(rng, drawn.left, (m, k)), _bytes(rng, drawn.right, (k, n))
    builder = GraphBuilder("dense")
    left, given = drawn.entered(builder, x)
    scale = drawn.weight_scale if drawn.weight_scale.size > 1 else drawn.weight_scale.reshape(())
    right = drawn.dequantized(builder, builder.constant(w, "w"), scale, drawn.weight_zero, 1)
    product = builder.emit("dense", [left, right])
    sums = (x.astype(np.int64) - int(drawn.zeros[0])) @ (w.astype(np.int64) - int(drawn.weight_zero))
    return Layer(
        builder.finish({"y": drawn.quantized(builder, product)}),
        {"x": given},
        drawn.requantized(sums, drawn.weight_scale),
    )


def _batch(rng: np.random.Generator) -> Layer:
    b, m, k, n = (int(rng.integers(1, most)) for most in (4, 30, 50, 40))
    drawn = _Drawn(rng, 1)
    x, z = _bytes(rng, drawn.left, (b, m, k)), _bytes(rng, drawn.right, (b, k, n))
    builder = GraphBuilder("batch", [Value("z", z.shape, drawn.right)])
    left, given = drawn.entered(builder, x)
    right = drawn.dequantized(builder, "z", drawn.weight_scale.reshape(()), drawn.weight_zero)
    product = builder.emit("batch_matmul", [left, right])
    sums = (x.astype(np.int64) - int(drawn.zeros[0])) @ (z.astype(np.int64) - int(drawn.weight_zero))
    expected = drawn.requantized(sums, drawn.weight_scale)
    return Layer(builder.finish({"y": drawn.quantized(builder, product)}), {"x": given, "z": z}, expected)


def _convolution(rng: np.random.Generator) -> Layer:
    groups = int(rng.choice([1, 1, 2, 4, 12]))
    inputs = int(rng.choice([1, 3, 4, 5, 8, 17])) if groups < 12 else 1
    filters = int(rng.choice([1, 2, 5, 16, 20])) if groups < 12 else 1
    kernel = int(rng.choice([1, 3, 5]))
    return _windows(rng, groups, inputs, filters, (kernel, kernel))


def _depthwise(rng: np.random.Generator) -> Layer:
    window = int(rng.choice([1, 2, 3, 4, 5, 7])), int(rng.choice([1, 2, 3, 5, 6]))
    return _windows(rng, int(rng.choice([7, 16, 24, 33, 64, 100])), 1, 1, window)


def _windows(rng: np.random.Generator, groups: int, inputs: int, filters: int, window: tuple[int, int]) -> Layer:
    """A convolution with `inputs` channels and `filters` for each group."""
    size, stride = int(rng.integers(max(5, *window), 12)), int(rng.integers(1, 3))
    pad, outputs = int(rng.integers(0, max(1, min(window) // 2 + 1))), groups * filters
    drawn = _Drawn(rng, outputs)
    x = _bytes(rng, drawn.left, (1, groups * inputs, size, size))
    w = _bytes(rng, drawn.right, (outputs, inputs, *window))
    builder = GraphBuilder("convolution")
    left, given = drawn.entered(builder, x)
    scale = drawn.weight_scale if drawn.weight_scale.size > 1 else drawn.weight_scale.reshape(())
    right = drawn.dequantized(builder, builder.constant(w, "w"), scale, drawn.weight_zero)
    strides, pads = (stride,) * 2, (pad,) * 4
    attrs: dict[str, Attribute] = {"strides": strides, "pads": pads, "dilations": (1, 1), "groups": groups}
    attrs["layout"] = "NCHW"
    product = builder.emit("conv2d", [left, right], attrs)
    padded = np.pad(x.astype(np.int64) - int(drawn.zeros[0]), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = sliding_window_view(padded, window, (2, 3))[:, :, ::stride, ::stride]
    windows = windows.reshape(1, groups, inputs, *windows.shape[2:])
    weight = (w.astype(np.int64) - int(drawn.weight_zero)).reshape(groups, filters, inputs, *window)
    sums = np.einsum("ngihwyx,gfiyx->ngfhw", windows, weight)
    sums = sums.reshape(1, outputs, *sums.shape[3:])
    expected = drawn.requantized(sums, drawn.weight_scale.reshape(-1, 1, 1))
    return Layer(builder.finish({"y": drawn.quantized(builder, product)}), {"x": given}, expected)


def _transposed(rng: np.random.Generator) -> Layer:
    inputs, filters = int(rng.choice([3, 4, 8, 20])), int(rng.choice([1, 5, 16, 24]))
    kernel, stride, size = (int(rng.integers(1, 6)), int(rng.integers(1, 6))), int(rng.integers(1, 4)), 5
    pad = tuple(int(rng.integers(0, extent)) if extent > 1 else 0 for extent in kernel)
    drawn = _Drawn(rng, filters)
    x = _bytes(rng, drawn.left, (1, inputs, size, size))
    w = _bytes(rng, drawn.right, (inputs, filters, *kernel))
    builder = GraphBuilder("transposed")
    left, given = drawn.entered(builder, x)
    scale = drawn.weight_scale if drawn.weight_scale.size > 1 else drawn.weight_scale.reshape(())
    right = drawn.dequantized(builder, builder.constant(w, "w"), scale, drawn.weight_zero, 1)
    # Zeros after the last element often make the stride divide the result.
    after = tuple(pads - int(rng.integers(0, stride)) for pads in pad)
    attrs: dict[str, Attribute] = {"strides": (stride,) * 2, "pads": (*pad, *after), "layout": "NCHW"}
    product = builder.emit("conv_transpose2d", [left, right], attrs)
    whole = [(size - 1) * stride + extent for extent in kernel]
    sums = np.zeros((1, filters, *(extent + stride for extent in whole)), np.int64)
    for row, column in np.ndindex(*kernel):
        taps = w[:, :, row, column].astype(np.int64) - int(drawn.weight_zero)
        terms = np.einsum("nihw,io->nohw", x.astype(np.int64) - int(drawn.zeros[0]), taps)
        last = [offset + (size - 1) * stride + 1 for offset in (row, column)]
        sums[:, :, row : last[0] : stride, column : last[1] : stride] += terms
    sums = sums[:, :, pad[0] : whole[0] - after[0], pad[1] : whole[1] - after[1]]
    expected = drawn.requantized(sums, drawn.weight_scale.reshape(-1, 1, 1))
    return Layer(builder.finish({"y": drawn.quantized(builder, product)}), {"x": given}, expected)


def _residual(rng: np.random.Generator) -> Layer:
    shape = tuple(int(size) for size in rng.integers(10, 50, 2))
    drawn, other = _Drawn(rng, 1), _Drawn(rng, 1)
    # Half of the sums lie near the middle between two results, where the last bit of every operation decides.
    other.scales[0], drawn.scales[1] = drawn.scales[0] * np.float32(3), drawn.scales[0] * np.float32(2)
    x, z = _bytes(rng, drawn.left, shape), _bytes(rng, other.left, shape)
    builder = GraphBuilder("residual", [Value("x", shape, drawn.left), Value("z", shape, other.left)])
    left = drawn.dequantized(builder, "x", drawn.scales[0], drawn.zeros[0])
    right = drawn.dequantized(builder, "z", other.scales[0], other.zeros[0])
    total = builder.emit("add", [left, right])
    sides = [
        (array.astype(np.int64) - int(side.zeros[0])).astype("float32") * side.scales[0]
        for array, side in ((x, drawn), (z, other))
    ]
    # Each operation is rounded to float32 by itself, and the division is one.
    expected = drawn.clipped(np.rint((sides[0] + sides[1]) / drawn.scales[1]))
    return Layer(builder.finish({"y": drawn.quantized(builder, total)}), {"x": x, "z": z}, expected)


_KINDS: tuple[Callable[[np.random.Generator], Layer], ...] = (
    *(_dense, _convolution, _batch, _convolution, _residual),
    *(_depthwise, _depthwise, _transposed),
)


def _layer(seed: int) -> Layer:
    return _KINDS[seed % len(_KINDS)](np.random.default_rng([seed, 8]))


def _results(layer: Layer, target: Target, seed: int) -> Iterator[tuple[str, Array]]:
    """The results of the default schedules and of a sampled program for each kernel, on one and on two threads."""
    graph = optimize(layer.graph)
    for threads in (1, 2):
        cut = partition(graph, target, hardware_of(target, threads))
        programs = [(task, SketchPolicy(task, RandomModel(seed), _OPTIONS, seed).ask(1, 0)) for task in cut.tasks]
        sampled = {task.workload_key: candidates[0] for task, candidates in programs if candidates}
        for name, best in (("default", {}), ("sampled", sampled)):
            executor = GraphExecutor(compile_graph(graph, target, best, threads=threads, cut=cut), threads)
            for operand, array in layer.inputs.items():
                executor.set_input(operand, array)
            executor.run()
            yield f"{name} schedules, {threads} threads", executor.get_output(0)


def _check(text: str, seeds: Iterable[int]) -> None:
    for seed in seeds:
        layer = _layer(seed)
        for name, result in _results(layer, Target(text), seed):
            np.testing.assert_array_equal(result, layer.expected, err_msg=f"{name}, {layer.graph}")


@pytest.mark.parametrize("text", _TARGETS)
@pytest.mark.parametrize("seed", long_except([5, 7], range(32)))
def test_results_of_bytes_have_the_bits_of_the_definition(text: str, seed: int) -> None:
    _check(text, [seed])


@pytest.mark.parametrize("text", long_except(_TARGETS[:1], _TARGETS))
def test_convolutions_of_few_channels_have_the_bits_of_the_definition(text: str) -> None:
    for seed in range(4):
        rng = np.random.default_rng([seed, 9])
        window = int(rng.integers(1, 5)), int(rng.integers(2, 8))
        layer = _windows(rng, 1, int(rng.integers(1, 4)), int(rng.choice([5, 16, 24])), window)
        for name, result in _results(layer, Target(text), seed):
            np.testing.assert_array_equal(result, layer.expected, err_msg=f"{name}, {layer.graph}")


def test_a_fused_or_approximate_operation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    emit, wrong = GraphBuilder.emit, {"rounded_mul": "mul", "true_div": "div"}

    def emit_wrong(builder: GraphBuilder, op: str, *args: Any, **named: Any) -> str:
        return emit(builder, wrong.get(op, op), *args, **named)

    monkeypatch.setattr(GraphBuilder, "emit", emit_wrong)
    with pytest.raises(AssertionError, match="schedules"):
        _check("llvm", range(4, 50, 8))


def test_a_zero_point_that_is_added_before_rounding_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = GraphBuilder.emit

    def emit_wrong(builder: GraphBuilder, op: str, inputs: list[str], *args: Any, **named: Any) -> str:
        if op == "saturate":
            real, zero = inputs
            shifted = emit(builder, "add", [real, emit(builder, "cast", [zero], {"dtype": "float32"})])
            inputs = [shifted, builder.scalar(0, "int32")]
        return emit(builder, op, inputs, *args, **named)

    monkeypatch.setattr(GraphBuilder, "emit", emit_wrong)
    with pytest.raises(AssertionError, match="schedules"):
        _check("llvm", range(4, 50, 8))


def test_a_wrong_correction_of_signs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    if ("uint8", "int8") not in dot_instructions(Target("llvm")):
        pytest.skip("this CPU has no dot products of mixed signs")
    monkeypatch.setitem(flip_signedness._TURNED, "uint8", 127)
    with pytest.raises(AssertionError, match="schedules"):
        _check("llvm", range(0, 50, 8))


_CONVOLVED: dict[str, Attribute] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
_PHASES: dict[str, Attribute] = {"strides": (2, 2), "pads": (1, 1), "size": (5, 6), "layout": "NHWC", "pad_value": 7}
_FORMS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Attribute]], ...] = (
    *(
        (
            "qconv2d",
            (1, 7, 9, channels),
            (*taps, channels),
            {**_CONVOLVED, "strides": (stride, stride), "groups": channels, "pad_value": 7, "window": window},
        )
        for channels, taps, window, stride in (
            (7, (4, 3), (3, 3), 1),
            (33, (8, 5), (5, 5), 2),
            (64, (8, 7), (7, 7), 1),
            (24, (1, 4), (1, 3), 1),
        )
    ),
    ("qconv_phases2d", (1, 5, 6, 8), (4, 4, 8, 19), _PHASES),
    ("qbatch_matmul", (3, 9, 20), (3, 20, 37), {}),
)


@pytest.mark.parametrize("text", _TARGETS)
def test_operators_of_bytes_stay_within_their_buffers(text: str) -> None:
    target = Target(text)
    for seed, (op, left, right, attrs) in enumerate(_FORMS):
        operands = [te.placeholder(left, "uint8", "x"), te.placeholder(right, "int8", "w")]
        constants = frozenset(operands[1:]) if op != "qbatch_matmul" else frozenset()
        dag = ComputeDAG([*operands, OPS[op].tensor(operands, attrs, constants=constants)])
        steps = default_steps(dag, hardware_of(target, 1))
        checked(dag, steps, full_inputs(dag, seed), 2, [0.0], target=target)
