"""Calls of regions: one statement each, and plans are checked when they are bound."""

import json
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node as node

from retune.compiler import vm
from retune.compiler.core.errors import ArtifactError, DefinitionError
from retune.compiler.runtime.archive import archive_bytes
from retune.compiler.runtime.device import cpu
from retune.compiler.vm.library import VERSION
from retune.compiler.vm.plan_region import PlanRegion
from retune.compiler.vm.saved_program import program_parts
from tests.support.dynamic_models import floats, model, reference, tensor

WEIGHTS = {"w": floats(6, 5)}


def network() -> Any:
    """A product of unknown length, and its rows that are not zero, whose number depends on data."""
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("NonZero", ["y"], ["z"]), node("Transpose", ["y"], ["t"])]
    outputs = [tensor("t", [5, "n"]), tensor("z", [2, None], TensorProto.INT64)]
    return model(nodes, [tensor("x", ["n", 6])], outputs, WEIGHTS)


@pytest.mark.parametrize("memory", ["pooled", "naive"])
def test_a_region_of_unknown_shapes_is_one_call(memory: str) -> None:
    exe = vm.compile(network())
    machine = vm.VirtualMachine(exe, cpu(), memory)
    assert len(exe.program.main.body) == len(exe.program.regions()) >= 2
    assert not any(isinstance(region, PlanRegion) for region in exe.program.regions())
    for rows in (3, 0, 3, 7):
        x = floats(rows, 6)
        for found, expected in zip(machine.run(x), reference(network(), {"x": x}), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_region_of_known_shapes_is_a_call_of_a_plan() -> None:
    exe = vm.compile(network(), params={"x": floats(3, 6)})
    assert sum(isinstance(region, PlanRegion) for region in exe.program.regions()) == 1


def test_results_of_a_plan_are_arrays_of_their_own() -> None:
    nodes = [node("Identity", ["x"], ["same"]), node("Neg", ["x"], ["y"]), node("Reshape", ["y", "flat"], ["z"])]
    outputs = [tensor("same", [2, 3]), tensor("y", [2, 3]), tensor("z", [6]), tensor("w", [2])]
    weights = {"flat": np.array([6]), "w": floats(2)}
    machine = vm.VirtualMachine(vm.compile(model(nodes, [tensor("x", [2, 3])], outputs, weights)), cpu())
    x = floats(2, 3)
    first = machine.run(x)
    expected = [x.copy(), -x, -x.reshape(6), weights["w"]]
    for found in first:
        found += 1
    for found, one in zip(machine.run(x), expected, strict=True):
        np.testing.assert_array_equal(found, one)
    for found, one in zip(first, expected, strict=True):
        np.testing.assert_array_equal(found, one + 1)


def _changed(**changes: Any) -> vm.Executable:
    """A network of known shapes, of whose saved plan something is changed."""
    source = model([node("MatMul", ["x", "w"], ["y"])], [tensor("x", [3, 6])], [tensor("y", [3, 5])], WEIGHTS)
    exe = vm.compile(source)
    parts = program_parts(exe.program, {})
    (region,) = exe.program.regions()
    head = {**json.loads(region.to_bytes()), **changes}
    if "plan" in changes:
        head["plan"] = changes["plan"](json.loads(region.to_bytes())["plan"])
    return vm.Executable.load_exec(archive_bytes("program", VERSION, {**parts, "regions/0.json": head}), exe.lib)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffers": []}, "is missing"),
        ({"buffers": [[1, "other"]]}, "the constants of main_0, which are 1"),
        ({"buffers": 5}, "damaged"),
        ({"plan": lambda text: text.replace('"arena_bytes"', '"arena"')}, "plan cannot be read"),
        ({"plan": lambda text: text.replace('"outputs": [', '"outputs": [99,')}, "no buffer 99"),
        ({"plan": lambda text: text.replace('"kernel": "', '"kernel": "no_')}, "no kernel 'no_"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        vm.VirtualMachine(_changed(**changes), cpu())


def test_a_compiled_program_is_not_compiled_again() -> None:
    exe = vm.compile(network(), params={"x": floats(3, 6)})
    with pytest.raises(DefinitionError, match="compile the network itself"):
        vm.compile(exe.program)
