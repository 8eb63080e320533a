"""Calls of regions and kernels: one instruction each, and what they are given is checked in every call."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node as node

from retune.compiler import vm
from retune.compiler.errors import ArtifactError, MachineError
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.runtime.device import cpu
from retune.compiler.vm.instructions import AllocADT, Goto, If, KillRegister, Ret, RunPlan, RunRegion
from retune.compiler.vm.library import StoredRegion
from tests.support.dynamic_models import floats, model, reference, tensor
from tests.support.vm_code import Code

WEIGHTS = {"w": floats(6, 5)}


def network() -> Any:
    """A product of unknown length, and its rows that are not zero, whose number depends on data."""
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("NonZero", ["y"], ["z"]), node("Transpose", ["y"], ["t"])]
    outputs = [tensor("t", [5, "n"]), tensor("z", [2, None], TensorProto.INT64)]
    return model(nodes, [tensor("x", ["n", 6])], outputs, WEIGHTS)


@pytest.mark.parametrize("memory", ["pooled", "naive"])
def test_a_region_of_unknown_shapes_is_one_instruction(memory: str) -> None:
    exe = vm.compile(network())
    kinds = [type(each) for each in exe.image.functions[0].instructions]
    machine = vm.VirtualMachine(exe, cpu(), memory)
    assert kinds.count(RunRegion) == len(machine.regions) >= 2
    assert set(kinds) <= {RunRegion, KillRegister, AllocADT, Ret}
    for rows in (3, 0, 3, 7):
        x = floats(rows, 6)
        for found, expected in zip(machine.run(x), reference(network(), {"x": x}), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_region_of_known_shapes_is_one_instruction() -> None:
    exe = vm.compile(network(), params={"x": floats(3, 6)})
    kinds = [type(each) for each in exe.image.functions[0].instructions]
    assert kinds.count(RunPlan) == 1


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


def test_a_call_of_the_wrong_kind_of_primitive_is_refused() -> None:
    for call, message in ((RunRegion, "must be called by invoke_packed"), (RunPlan, "must be called by invoke_packed")):
        code = Code()
        body = code.function("main", "x")
        (out,) = body.writer.run(call, code.tables.primitive("add", {}), [0, 0], 1)
        body.ret(out)
        with pytest.raises(MachineError, match=message):
            code.machine().run(np.int32(1))
    code = Code()
    body = code.function("main", "x")
    iteration = code.tables.primitive("loop.next_turn", {"kind": "loop", "function": "next_turn"})
    body.ret(body.writer.run(RunRegion, iteration, [0], 2)[0])
    with pytest.raises(MachineError, match="1 results, not 2"):
        code.machine().run(np.int64(1))


def _changed(exe: vm.Executable, **attrs: str) -> vm.Executable:
    (primitive,) = exe.image.primitives
    changed = replace(primitive, attrs={**primitive.attrs, **attrs})
    return vm.Executable(replace(exe.image, primitives=(changed,)), exe.library)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"region": "other"}, "no region 'other'"),
        ({"constants": ""}, "is missing"),
        ({"constants": "1:9"}, "names constants"),
        ({"constants": "1"}, "make no sense"),
    ],
)
def test_a_plan_whose_attributes_do_not_fit_is_refused(attrs: dict[str, str], message: str) -> None:
    source = model([node("MatMul", ["x", "w"], ["y"])], [tensor("x", [3, 6])], [tensor("y", [3, 5])], WEIGHTS)
    exe = vm.compile(source)
    with pytest.raises(ArtifactError, match=message):
        vm.VirtualMachine(_changed(exe, **attrs), cpu())
    region = exe.image.primitives[0].attrs["region"]
    damaged = exe.library.regions[region].data.replace(b'"arena_bytes"', b'"arena"')
    library = replace(exe.library, regions={region: StoredRegion("plan", damaged)})
    for use in (lambda one: vm.VirtualMachine(one, cpu()), str):
        with pytest.raises(ArtifactError, match="plan cannot be read"):
            use(vm.Executable(exe.image, library))


def test_a_register_that_is_empty_now_is_not_taken_for_what_it_held() -> None:
    code = Code()
    body = code.function("main", "x", "empty")
    one = body.writer.number(1)
    body.writer.emit(If(1, one, 1, 2))
    body.writer.emit(KillRegister(0))
    body.writer.emit(Goto(1))
    body.ret(body.op("add", 0, 0))
    machine = code.machine()
    assert machine.run(np.int32(4), 0) == 8
    with pytest.raises(MachineError, match="not nothing"):
        machine.run(np.int32(5), 1)
    assert machine.run(np.int32(6), 0) == 12


def test_an_array_of_another_kind_is_refused_where_one_that_fits_was_before() -> None:
    code = Code()
    body = code.function("main", "x", "y")
    body.ret(body.op("add", 0, 1))
    machine = code.machine()
    x = aligned_copy(np.array(3, np.int32))
    assert machine.run(x, x) == 6
    for other in (np.float32(3), np.zeros(2, np.int32)):
        with pytest.raises(MachineError, match="argument y is int32"):
            machine.run(x, other)
    machine.set_input("main", x, x)
    x[...] = 5
    assert machine.run() == 10, "an array is read again in every call"
