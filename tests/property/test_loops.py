"""Random loops compute in one kernel what ONNX Runtime computes, and so do their graphs by NumPy."""

from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from retune import compiler
from retune.compiler.codegen import scan_loop
from retune.compiler.codegen.work import BARRIER_CYCLES
from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.ops.loops import loop_steps
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.tvm.graph_executor import GraphModule, cpu
from tests.support.property.loops import Arrays, random_loop, without_unused


def expected_of(model: onnx.ModelProto, arrays: Arrays) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, arrays))


def check(seed: int, number: int) -> bool:
    """Check a loop; whether it became one operator."""
    rng = np.random.default_rng([seed, number])
    model, arrays = random_loop(rng)
    expected = expected_of(model, arrays)
    model = without_unused(model)
    # As if no loop were short, and every other time every loop of a step worth two threads.
    with patch.object(loop_steps, "_FEW_NODES", 0):
        graph = load_model(model)
    threads = BARRIER_CYCLES if number % 2 else 0
    with patch.object(loop_steps, "_FEW_NODES", 0), patch.object(scan_loop, "BARRIER_CYCLES", threads):
        module = GraphModule(compiler.build_network(model)["default"](cpu()))
    module.run(**arrays)
    for index, (right, meant) in enumerate(zip(expected, evaluate(graph, arrays), strict=True)):
        np.testing.assert_allclose(meant, right, err_msg=f"NumPy, loop {number}, result {index}", rtol=2e-4, atol=2e-4)
        made = np.asarray(module.get_output(index).numpy())
        assert (made.dtype, made.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(made, right, err_msg=f"kernel, loop {number}, result {index}", rtol=2e-4, atol=2e-4)
    return any(node.op == "scan" for node in graph.nodes)


def test_random_loops_agree_with_onnxruntime(property_seed: int) -> None:
    assert sum(check(property_seed, number) for number in range(4)) >= 3


@pytest.mark.long
def test_sixty_random_loops_agree_with_onnxruntime(property_seed: int) -> None:
    assert sum(check(property_seed + 1000, number) for number in range(60)) >= 50
