"""Calls of other libraries that compute an operator, with their results.

A library that is not installed is skipped. Layouts are the ones each library prefers, converted before timing begins;
weights are constants where the library supports that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.problems import (
    EPSILON,
    Convolution,
    Floats,
    LayerNorm,
    Problem,
    Product,
    Softmax,
    TransposedConvolution,
)
from retune.compiler.tune import onnx_runtime

try:
    import torch
    from torch.nn import functional
except ImportError:  # a large package that nothing else here needs
    torch = None

NUMPY, ONNX, TORCH = "numpy", "onnxruntime", "torch"

OPSET, IR_VERSION = 17, 8

Arrays = Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class PeerCall:
    """One library's implementation: `run` is timed, `result` returns the last call's result in our layout."""

    run: Callable[[], object]
    result: Callable[[], Floats]


def peers(problem: Problem, arrays: Arrays, threads: int) -> dict[str, PeerCall]:
    """The libraries that are installed and know the operator, by name."""
    found = {NUMPY: _numpy(problem, arrays)}
    if onnx_runtime.is_installed():
        found[ONNX] = _onnx(problem, arrays, threads)
    if torch is not None:
        torch.set_num_threads(threads)
        found[TORCH] = _torch(problem, arrays)
    return {name: call for name, call in found.items() if call is not None}


def _channels_first(array: Floats) -> Floats:
    return np.ascontiguousarray(np.moveaxis(array, -1, 1))


def _weight_first(problem: Convolution | TransposedConvolution, weight: Floats) -> Floats:
    """(*kernel, I, O) or (*kernel, C) as (O, I, *kernel), a transposed one as (I, O, *kernel)."""
    if isinstance(problem, TransposedConvolution):
        return np.ascontiguousarray(np.moveaxis(weight, (2, 3), (0, 1)))
    rank = len(problem.output)
    whole = weight if weight.ndim == rank + 2 else weight[..., None, :]
    return np.ascontiguousarray(np.moveaxis(whole, (rank + 1, rank), (0, 1)))


def _numpy(problem: Problem, arrays: Arrays) -> PeerCall | None:
    """NumPy has no convolution."""
    match problem:
        case Product():
            out = np.empty((*arrays["x"].shape[:-1], problem.columns), np.float32)
            return PeerCall(lambda: np.matmul(arrays["x"], arrays["w"], out=out), lambda: out)
        case Softmax():
            out = np.empty_like(arrays["x"])
            return PeerCall(lambda: _softmax(arrays["x"], out), lambda: out)
        case LayerNorm():
            out = np.empty_like(arrays["x"])
            return PeerCall(lambda: _layer_norm(arrays, out), lambda: out)
    return None


def _softmax(x: Floats, out: Floats) -> None:
    np.subtract(x, x.max(axis=1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=1, keepdims=True), out=out)


def _layer_norm(arrays: Arrays, out: Floats) -> None:
    x = arrays["x"]
    np.subtract(x, x.mean(axis=1, keepdims=True), out=out)
    np.divide(out, np.sqrt(np.mean(out * out, axis=1, keepdims=True) + np.float32(EPSILON)), out=out)
    np.multiply(out, arrays["scale"], out=out)
    np.add(out, arrays["bias"], out=out)


def _onnx(problem: Problem, arrays: Arrays, threads: int) -> PeerCall:
    feeds: dict[str, Floats] = {"x": arrays["x"]}
    constants = {name: array for name, array in arrays.items() if name != "x"}
    back: Callable[[Any], Floats] = np.asarray
    attributes: dict[str, Any] = {}
    names = list(arrays)
    nodes: list[onnx.NodeProto] = []
    match problem:
        case Convolution() | TransposedConvolution():
            kind = "Conv" if isinstance(problem, Convolution) else "ConvTranspose"
            rank = len(problem.output)
            attributes = {"strides": [problem.stride] * rank, "pads": [problem.pad] * (2 * rank)}
            if isinstance(problem, Convolution):
                attributes |= {"dilations": [problem.dilation] * rank, "group": problem.groups}
            feeds["x"] = _channels_first(arrays["x"])
            constants["w"] = _weight_first(problem, arrays["w"])
            back = lambda array: np.moveaxis(array, 1, -1)  # noqa: E731
        case Product():
            kind = "MatMul"
            if problem.batch:
                feeds["w"] = constants.pop("w")
        case Softmax():
            kind, attributes = "Softmax", {"axis": 1}
        case LayerNorm():
            kind, attributes = "LayerNormalization", {"axis": 1, "epsilon": EPSILON}
    last = "y"
    if isinstance(problem, Convolution) and problem.norm:
        names = ["x", "w"]
        constants |= _still(problem)
        nodes.append(helper.make_node("BatchNormalization", ["y", "scale", "bias", "mean", "var"], ["n"], epsilon=0.0))
        last = "n"
    if isinstance(problem, Convolution) and problem.epilogue:
        nodes.append(helper.make_node("Relu", [last], ["z"]))
        last = "z"
    nodes.insert(0, helper.make_node(kind, names, ["y"], **attributes))
    shape = problem.graph().outputs[0].shape
    shape = (shape[0], shape[-1], *shape[1:-1]) if "strides" in attributes else shape
    graph = helper.make_graph(
        nodes,
        "operator",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    session = onnx_runtime.OnnxRuntime(model.SerializeToString(), threads)
    return PeerCall(lambda: session.run(feeds), lambda: back(session.run(feeds)[0]))


def _still(problem: Convolution) -> dict[str, Floats]:
    """The statistics with which a batch normalization only scales and shifts."""
    channels = problem.channels[1]
    return {"mean": np.zeros(channels, np.float32), "var": np.ones(channels, np.float32)}


def _torch(problem: Problem, arrays: Arrays) -> PeerCall:
    """PyTorch, eager; a 2-D convolution in its channels-last memory format, which is the faster one."""
    run: Callable[[], Any]
    t = {name: torch.from_numpy(array) for name, array in arrays.items()}
    back: Callable[[Any], Any] = lambda y: y  # noqa: E731
    match problem:
        case Convolution() | TransposedConvolution():
            x, w = (
                torch.from_numpy(array) for array in (_channels_first(arrays["x"]), _weight_first(problem, arrays["w"]))
            )
            if len(problem.output) == 2:
                x, w = (value.contiguous(memory_format=torch.channels_last) for value in (x, w))
            back = lambda y: y.movedim(1, -1)  # noqa: E731
            if isinstance(problem, Convolution):
                convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[len(problem.output) - 1]
                sizes = (problem.stride, problem.pad, problem.dilation, problem.groups)
                bare = partial(convolve, x, w, None if problem.norm else t.get("bias"), *sizes)
                run = bare
                if problem.norm:
                    mean, var = (torch.from_numpy(array) for array in _still(problem).values())
                    normal = partial(functional.batch_norm, weight=t["scale"], bias=t["bias"], eps=0.0)
                    run = lambda: functional.relu_(normal(bare(), mean, var))  # noqa: E731
                elif problem.epilogue:
                    run = lambda: functional.relu_(bare())  # noqa: E731
            else:
                run = partial(functional.conv_transpose2d, x, w, None, problem.stride, problem.pad)
        case Product():
            run = partial(torch.matmul, t["x"], t["w"])
        case Softmax():
            run = partial(torch.softmax, t["x"], 1)
        case LayerNorm():
            run = partial(functional.layer_norm, t["x"], problem.shape[1:], t["scale"], t["bias"], EPSILON)

    def quiet(call: Callable[[], Any] = run) -> Any:
        with torch.inference_mode():
            return call()

    return PeerCall(quiet, lambda: back(quiet()).numpy())
