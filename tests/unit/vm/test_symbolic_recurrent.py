"""Recurrent networks whose number of steps is symbolic: one kernel makes any number of steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.compiler import vm
from retune.compiler.codegen.team import extent_function
from retune.compiler.runtime.device import cpu
from retune.compiler.vm.kernel_store import STORE
from retune.compiler.vm.symbolic_plan import SymbolicPlanRegion
from tests.support.dynamic_models import Array, floats, model, reference, tensor

node = helper.make_node
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_STEPS = (7, 1, 40, 2, 7, 130)


def recurrent(op: str, direction: str, batch: int = 2, **attributes: Any) -> onnx.ModelProto:
    """Two layers over the same sequences, with all states and the last ones."""
    count, rows = 1 + (direction == "bidirectional"), 6 * _GATES[op]
    weights: dict[str, Array] = {}
    nodes, x, width = [], "x", 5
    for layer in range(2):
        names = [f"{part}{layer}" for part in ("w", "r", "b")]
        shapes = [(count, rows, width), (count, rows, 6), (count, 2 * rows)]
        weights |= {
            name: floats(*shape, seed=layer, low=-0.5, high=0.5) for name, shape in zip(names, shapes, strict=True)
        }
        made = [f"y{layer}", f"h{layer}"]
        nodes.append(node(op, [x, *names], made, hidden_size=6, direction=direction, **attributes))
        nodes.append(node("Transpose", [made[0]], [f"t{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(node("Reshape", [f"t{layer}", "shape"], [f"x{layer}"]))
        x, width = f"x{layer}", 6 * count
    constants = {**weights, "shape": np.array([0, 0, width])}
    outputs = [tensor("x1", [None, batch, width]), tensor("h1", [count, batch, 6])]
    return model(nodes, [tensor("x", ["steps", batch, 5])], outputs, constants)


SOURCES: Mapping[str, onnx.ModelProto] = {
    **{f"{op} {direction}": recurrent(op, direction) for op in _GATES for direction in ("forward", "bidirectional")},
    "GRU of PyTorch": recurrent("GRU", "reverse", 1, linear_before_reset=1),
}


def check(machine: vm.VirtualMachine, source: onnx.ModelProto, steps: int) -> None:
    shape = [dim.dim_value or steps for dim in source.graph.input[0].type.tensor_type.shape.dim]
    x = floats(*shape, seed=steps)
    for ours, theirs in zip(machine.run(x), reference(source, {"x": x}), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, err_msg=f"{steps} steps")


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("threads", [1, 2])
def test_one_kernel_makes_any_number_of_steps(name: str, threads: int) -> None:
    exe = vm.Executable.load_exec(*vm.compile(SOURCES[name], threads=threads).save())
    assert exe.per_shape == {}
    machine, before = vm.VirtualMachine(exe), STORE.use.asked
    for steps in _STEPS:
        check(machine, SOURCES[name], steps)
    assert STORE.use.asked == before
    assert machine.specializations() == ()


@pytest.mark.parametrize("name", SOURCES)
def test_no_step_leaves_the_first_state(name: str) -> None:
    exe = vm.compile(SOURCES[name])
    assert exe.limits == {}
    machine = vm.VirtualMachine(exe)
    _, batch, width = (dim.dim_value for dim in SOURCES[name].graph.input[0].type.tensor_type.shape.dim)
    states, last = machine.run(np.zeros((0, batch, width), np.float32))
    assert (states.shape[0], states.size) == (0, 0)
    np.testing.assert_array_equal(last, np.zeros_like(last))
    assert machine.specializations() == ()


def test_a_step_that_does_not_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_less(symbol: str, extent: int, emitter: Any) -> str:
        return extent_function(symbol, extent - symbol.endswith(".steps"), emitter)

    monkeypatch.setattr("retune.compiler.codegen.kernel.extent_function", one_less)
    monkeypatch.setattr(STORE, "_artifacts", type(STORE._artifacts)())
    source = recurrent("GRU", "forward", 3)
    machine = vm.VirtualMachine(vm.compile(source))
    with pytest.raises(AssertionError):
        check(machine, source, 9)


def _scan() -> onnx.ModelProto:
    """A Scan from the last row to the first: a product with the state, and its sums."""
    body = helper.make_graph(
        [
            node("MatMul", ["a", "w"], ["p"]),
            node("Add", ["p", "row"], ["s"]),
            node("Tanh", ["s"], ["next"]),
            node("ReduceSum", ["next"], ["sum"], keepdims=0),
        ],
        "step",
        [tensor("a", [2, 4]), tensor("row", [2, 4])],
        [tensor("next", [2, 4]), tensor("sum", [])],
    )
    scan = node("Scan", ["first", "x"], ["last", "sums"], body=body, num_scan_inputs=1, scan_input_directions=[1])
    outputs = [tensor("last", [2, 4]), tensor("sums", ["t"])]
    return model([scan], [tensor("x", ["t", 2, 4]), tensor("first", [2, 4])], outputs, {"w": floats(4, 4)})


def test_a_scan_of_any_length_is_one_plan() -> None:
    source = _scan()
    exe = vm.compile(source, threads=1)
    assert exe.per_shape == {}
    assert [type(region) for region in exe.program.regions()] == [SymbolicPlanRegion]
    machine, first = vm.VirtualMachine(exe, cpu()), floats(2, 4)
    for steps in (1, 2, 17, 300):
        inputs = {"x": floats(steps, 2, 4), "first": first}
        for ours, theirs in zip(machine.run(**inputs), reference(source, inputs), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, err_msg=f"{steps} steps")
    last, sums = machine.run(x=floats(0, 2, 4), first=first)
    np.testing.assert_array_equal(last, first)
    assert sums.shape == (0,)
    without = vm.VirtualMachine(exe, cpu(), options=vm.VMOptions(specialize="never"))
    inputs = {"x": floats(5, 2, 4), "first": first}
    for ours, theirs in zip(without.run(**inputs), machine.run(**inputs), strict=True):
        np.testing.assert_array_equal(ours, theirs)
