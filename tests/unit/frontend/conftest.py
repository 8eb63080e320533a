"""Fixtures that compare the import of an ONNX node or model with ONNX Runtime on seeded inputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.pipeline import PIPELINE
from retune.compiler.graph.verify import verify

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Graph]


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str] = ("y",),
    weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of float32 inputs; the shapes of its outputs are left to the runtime."""
    graph = helper.make_graph(
        list(nodes),
        "case",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    inferred = onnx.shape_inference.infer_shapes(model)
    for value in inferred.graph.output:
        if not value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return inferred


@pytest.fixture
def model_of() -> ModelOf:
    """`make_model` for tests."""
    return make_model


@pytest.fixture
def agrees_with_onnxruntime() -> Agrees:
    """Import a model, then compare it before and after every pass with ONNX Runtime; returns the optimized graph."""

    def check(model: onnx.ModelProto) -> Graph:
        graph = load_model(model)
        rng = np.random.default_rng(7)
        feed: dict[str, np.ndarray[Any, Any]] = {
            value.name: rng.standard_normal(value.shape, dtype=np.float32)
            if value.dtype == "float32"
            else rng.integers(0, 2, value.shape).astype(value.dtype)
            for value in graph.inputs
        }
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        expected = session.run(None, feed)
        assert graph.outputs == tuple(output.name for output in session.get_outputs())
        for graph_pass in (None, *PIPELINE):
            if graph_pass is not None:
                graph = graph_pass(graph)
                verify(graph)
            for ours, theirs in zip(evaluate(graph, feed), expected, strict=True):
                assert ours.shape == theirs.shape
                assert ours.dtype == theirs.dtype
                scale = max(1.0, float(np.abs(theirs).max(initial=0.0)))
                np.testing.assert_allclose(ours / scale, theirs / scale, rtol=0, atol=2e-5, err_msg=str(graph_pass))
        return graph

    return check
