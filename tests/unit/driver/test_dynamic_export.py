"""Networks of dynamic shapes in ONNX Runtime and in C: equal to the network itself, and refused sizes."""

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import retune
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.buffers import aligned_array
from tests.support.dynamic_models import Array, attention, branching, floats, model, node, reference, tensor

WEIGHT = floats(8, 24)


def _rows() -> onnx.ModelProto:
    """relu(x w), the sum of its rows; x itself and the sum again; an input that nothing reads."""
    nodes = [
        node("MatMul", ["x", "w"], ["product"]),
        node("Relu", ["product"], ["up"]),
        node("ReduceSum", ["up", "axis"], ["sum"], keepdims=0),
        node("Identity", ["x"], ["same"]),
        node("Identity", ["sum"], ["again"]),
    ]
    outputs = [tensor("up", ["b", "n", 24]), tensor("sum", ["b", 24])]
    outputs += [tensor("same", ["b", "n", 8]), tensor("again", ["b", 24])]
    inputs = [tensor("x", ["b", "n", 8]), tensor("unused", ["n", "k"])]
    return model(nodes, inputs, outputs, {"w": WEIGHT, "axis": np.array([1])})


def _image() -> onnx.ModelProto:
    """A strided convolution and an average pooling, whose sizes are quotients."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("AveragePool", ["r"], ["out"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=0),
    ]
    return model(
        nodes, [tensor("x", ["b", 3, "h", "w_"])], [tensor("out", ["b", 4, None, None])], {"w": floats(4, 3, 3, 3)}
    )


MODELS = {"rows": _rows(), "image": _image(), "attention": attention()}
LEAST = {"image": 3, "attention": 1}


def _inputs(source: onnx.ModelProto, numbers: Random, least: int, most: int = 40) -> dict[str, Array]:
    sizes: dict[str, int] = {}
    arrays = {}
    for value in source.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [
            sizes.setdefault(dim.dim_param, numbers.choice((least, least + 1, numbers.randint(least, most))))
            if dim.dim_param
            else dim.dim_value
            for dim in dims
        ]
        arrays[value.name] = floats(*shape, seed=numbers.randint(0, 9))
    return arrays


def _session(exported: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.register_custom_ops_library(str(exported.library))
    return onnxruntime.InferenceSession(str(exported.model), options)


class _Library:
    """The functions of a C library; arrays of floats."""

    def __init__(self, path: Path, source: onnx.ModelProto) -> None:
        library = ctypes.CDLL(str(path))
        names = (f"{path.stem}_{name}" for name in ("workspace_bytes", "shapes", "run"))
        self.room, self.shapes, self.run = (getattr(library, name) for name in names)
        self.room.restype = ctypes.c_int64
        self.ranks = [len(value.type.tensor_type.shape.dim) for value in source.graph.output]

    def __call__(self, sizes: list[int], inputs: list[Array], threads: int = 2) -> list[Array]:
        numbers = [ctypes.c_int64(size) for size in sizes]
        slots = [(ctypes.c_int64 * rank)() for rank in self.ranks]
        assert self.shapes(*numbers, *slots) == 0
        outputs = [_aligned(tuple(slot)) for slot in slots]
        workspace = _aligned((self.room(*numbers),))
        arrays = [_aligned(array.shape) for array in inputs]
        for array, value in zip(arrays, inputs, strict=True):
            array[...] = value
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, *outputs, workspace)]
        assert self.run(*numbers, *pointers, ctypes.c_int32(threads)) == 0
        return outputs


def _aligned(shape: tuple[int, ...]) -> Array:
    """An array whose address is a multiple of 64 also where it is empty."""
    count = int(np.prod(shape))
    return aligned_array((max(count, 1),), "float32")[:count].reshape(shape)


def _sizes(header: Path, source: onnx.ModelProto, arrays: Mapping[str, Array]) -> list[int]:
    """The sizes in the order of the header."""
    known = {
        dim.dim_param: extent
        for value in source.graph.input
        for dim, extent in zip(value.type.tensor_type.shape.dim, arrays[value.name].shape, strict=True)
    }
    match = re.search(r"workspace_bytes\(([^.)]+)\)", header.read_text())
    assert match is not None
    return [known[name] for name in re.findall(r"size_(\w+)", match[1])]


@pytest.mark.parametrize("name", MODELS)
def test_exports_compute_what_the_network_computes(name: str, tmp_path: Path) -> None:
    source = MODELS[name]
    network = retune.compile(source, dynamic=True, threads=2)
    session = _session(network.export(tmp_path / "ort.onnx"))
    exported = network.export(tmp_path / "net.so", runtime="c")
    library = _Library(exported.library, source)
    numbers = Random(name)
    for _ in range(12):
        arrays = _inputs(source, numbers, LEAST.get(name, 0))
        wanted = network(**arrays)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        in_c = library(_sizes(exported.model, source, arrays), list(arrays.values()))
        for own, of_session, of_library in zip(wanted, session.run(None, arrays), in_c, strict=True):
            np.testing.assert_array_equal(of_session, own)
            np.testing.assert_array_equal(of_library, own)


PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "net.h"

static float *numbers(int64_t count) { return aligned_alloc(64, (size_t)(count * 4 + 64) / 64 * 64); }

int main(void) {
    int64_t rows;
    while (scanf("%ld", &rows) == 1) {
        int64_t room = net_workspace_bytes(rows), shape[2];
        if (room < 0 || net_shapes(rows, shape) != 0) { printf("refused\\n"); continue; }
        float *x = numbers(rows * 8), *y = numbers(shape[0] * shape[1]), *workspace = numbers(room);
        for (int64_t i = 0; i < rows * 8; i++) x[i] = (float)(i % 7) - 3;
        int code = net_run(rows, x, y, workspace, 2), moved = net_run(rows, x + 1, y, workspace, 2);
        double sum = 0;
        for (int64_t i = 0; i < shape[0] * shape[1]; i++) sum += y[i];
        printf("%d %d %ld %ld %.3f\\n", code, moved, shape[0], shape[1], sum);
        free(x); free(y); free(workspace);
    }
}
"""


def test_a_c_program_runs_the_library_and_is_refused(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Relu", ["p"], ["y"])]
    source = model(nodes, [tensor("x", ["rows", 8])], [tensor("y", ["rows", 24])], {"w": WEIGHT})
    network = retune.compile(source, shapes={"x": ("0..9", 8)}, threads=2)
    network.export(tmp_path / "net.so", runtime="c")
    (tmp_path / "main.c").write_text(PROGRAM)
    command = ["cc", "-std=c11", "-Wall", "-Werror", "main.c", "net.so", "-Wl,-rpath,.", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, input="4 0 1 9 10 -1", capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    for rows, line in zip((4, 0, 1, 9), lines, strict=False):
        x = (np.arange(rows * 8) % 7 - 3).astype("float32").reshape(rows, 8)
        *facts, total = line.split()
        assert facts == ["0", "3", str(rows), "24"]
        assert float(total) == pytest.approx(np.maximum(x @ WEIGHT, 0).sum(), abs=1e-2)
    assert lines[4:] == ["refused", "refused"]


def test_sizes_that_the_plan_does_not_hold_for_are_refused(tmp_path: Path) -> None:
    network = retune.compile(MODELS["rows"], shapes={"x": ("1..4", "1..9", 8)}, threads=1)
    exported = network.export(tmp_path / "ort.onnx")
    session = _session(exported)
    x, unused = floats(2, 5, 8), floats(5, 3)
    (up, *_) = session.run(None, {"x": x, "unused": unused})
    np.testing.assert_allclose(up, np.maximum(x @ WEIGHT, 0), rtol=1e-4, atol=1e-4)
    for inputs, error in (
        ((floats(2, 10, 8), floats(10, 3)), "takes only sizes with .*10 > n"),
        ((floats(0, 5, 8), floats(5, 3)), "takes only sizes with .*b > 0"),
        ((x, floats(4, 3)), r"the input unused must be float32\[n, k\]"),
    ):
        with pytest.raises(Exception, match=error):
            session.run(None, dict(zip(("x", "unused"), inputs, strict=True)))
    names = [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in onnx.load(exported.model).graph.output
    ]
    assert names[:2] == [["b", "n", 24], ["b", 24]]


def test_short_rows_are_no_other_plan(tmp_path: Path) -> None:
    """A heuristic of a graph pass must not become a guard."""
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1, 1]), node("Transpose", ["c"], ["t"], perm=[0, 2, 1])]
    nodes.append(node("MatMul", ["t", "v"], ["y"]))
    source = model(
        nodes, [tensor("x", ["b", 8, "n"])], [tensor("y", ["b", "n", 5])], {"w": floats(6, 8, 3), "v": floats(6, 5)}
    )
    network = retune.compile(source, dynamic=True, threads=1)
    exported = network.export(tmp_path / "ort.onnx")
    assert exported.limits == ""
    for length in (1, 3, 40):
        x = floats(2, 8, length)
        np.testing.assert_allclose(
            _session(exported).run(None, {"x": x})[0], reference(source, {"x": x})[0], rtol=1e-4, atol=1e-4
        )


def _ranked() -> onnx.ModelProto:
    nodes = [node("TopK", ["x", "two"], ["y", "places"], axis=1)]
    outputs = [tensor("y", ["n", 2]), tensor("places", ["n", 2], TensorProto.INT64)]
    return model(nodes, [tensor("x", ["n", 8])], outputs, {"two": np.array([2])})


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (branching(), "computed by a branch or a loop"),
        (_ranked(), "top_k.* is compiled for each shape, because it scatters or ranks"),
    ],
)
def test_what_is_no_plan_for_all_shapes_is_named(source: onnx.ModelProto, error: str, tmp_path: Path) -> None:
    network = retune.compile(source, dynamic=True, threads=1)
    with pytest.raises(OptionError, match=f"dynamic.* cannot be exported for all shapes: .*{error}"):
        network.export(tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_other_endings_are_refused(tmp_path: Path) -> None:
    network = retune.compile(MODELS["rows"], dynamic=True, threads=1)
    for name, runtime in (("net.onnx", "c"), ("net.so", "onnxruntime")):
        with pytest.raises(ArtifactError, match=f"is exported to {'.so' if runtime == 'c' else '.onnx'}"):
            network.export(tmp_path / name, runtime=runtime)


def test_a_network_of_fixed_shapes_is_a_library_for_c(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    source = model(nodes, [tensor("x", [3, 8])], [tensor("y", [3, 24])], {"w": WEIGHT})
    exported = retune.export(source, tmp_path / "2nd.so", runtime="c", threads=1)
    assert "int64_t n2nd_workspace_bytes(void);" in exported.model.read_text()
    run = ctypes.CDLL(str(exported.library)).n2nd_run
    x, y = _aligned((3, 8)), _aligned((3, 24))
    x[...] = floats(3, 8)
    assert run(*(ctypes.c_void_p(array.ctypes.data) for array in (x, y, _aligned((4096,)))), 1) == 0
    np.testing.assert_allclose(y, x @ WEIGHT, rtol=1e-4, atol=1e-4)
