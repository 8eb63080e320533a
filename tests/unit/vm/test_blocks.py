"""Instructions that become one step: they do what they do one by one."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node as node

from retune.compiler import vm
from retune.compiler.errors import MachineError
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.runtime.device import cpu
from retune.compiler.vm.instructions import AllocStorage, Goto, If, KillRegister
from retune.compiler.vm.values import argument
from tests.dynamic_models import floats, model, tensor
from tests.vm_code import Code

WEIGHTS = {"w": floats(6, 5)}


def network() -> Any:
    """A product of unknown length, and its rows that are not zero, whose number depends on data."""
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("NonZero", ["y"], ["z"]), node("Transpose", ["y"], ["t"])]
    outputs = [tensor("t", [5, "n"]), tensor("z", [2, None], TensorProto.INT64)]
    return model(nodes, [tensor("x", ["n", 6])], outputs, WEIGHTS)


@pytest.mark.parametrize("memory", ["pooled", "naive"])
def test_calls_of_regions_are_one_step_each_and_do_the_same(memory: str) -> None:
    exe = vm.compile(network())
    machine = vm.VirtualMachine(exe, cpu(), memory)
    for rows in (3, 0, 3, 7):
        x = argument(floats(rows, 6))
        one_by_one = machine._interpreter.run(0, [x], lambda *_: None)
        joined = machine.run(x)
        for one, other in zip(one_by_one, joined, strict=True):
            np.testing.assert_array_equal(one, other)
    interpreter, instructions = machine._interpreter, exe.contents.functions[0].instructions
    pairs = zip(interpreter._linked_steps(0), interpreter._single_steps(0), strict=True)
    joined_at = [place for place, (step, single) in enumerate(pairs) if step is not single]
    assert len(joined_at) == len(machine.regions) >= 2
    place, met = 0, []  # what is met on the way through
    registers = interpreter._frame(0, [argument(floats(3, 6))])
    while place >= 0:
        met.append(type(instructions[place]))
        place = interpreter._linked_steps(0)[place](registers)
    assert AllocStorage not in met, "room for shapes and results is made without instructions"


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
    assert machine.run() == 10, "an array is read anew in every call"
