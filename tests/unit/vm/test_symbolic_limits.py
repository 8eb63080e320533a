"""Numbers that exporters write for "to the end", and symbols that look like sums, make no wrong symbolic graph."""

import numpy as np
import pytest
from onnx import helper

from retune.compiler import vm
from retune.compiler.vm.machine import VirtualMachine
from tests.support.dynamic_models import floats, model, tensor

TO_THE_END = 2**31 - 1


def test_a_slice_to_the_largest_int32_compiles() -> None:
    weights = {"zero": np.array([0]), "end": np.array([TO_THE_END]), "last": np.array([-1])}
    nodes = [
        helper.make_node("Slice", ["x", "zero", "end", "zero"], ["y"]),
        helper.make_node("Slice", ["y", "zero", "last", "zero"], ["out"]),
    ]
    network = model(nodes, [tensor("x", ["n", 4])], [tensor("out", [None, 4])], weights)
    x = floats(5, 4)
    found = np.asarray(VirtualMachine(vm.compile(network, threads=1)).invoke("main", x))
    np.testing.assert_array_equal(found, x[:-1])


@pytest.mark.parametrize("name", ["q", "n + 1"])
def test_a_symbol_that_is_called_like_a_sum_is_another_one(name: str) -> None:
    nodes = [
        helper.make_node("Shape", ["c"], ["len"]),
        helper.make_node("Slice", ["a", "z", "len", "z"], ["a1"]),
        helper.make_node("Concat", ["b", "one"], ["b1"], axis=0),
        helper.make_node("Slice", ["b1", "z", "len", "z"], ["b2"]),
        helper.make_node("ReduceSum", ["a1"], ["ra"], keepdims=0),
        helper.make_node("Add", ["b2", "ra"], ["out"]),
    ]
    inputs = [tensor("a", [name]), tensor("b", ["n"]), tensor("c", ["m"])]
    network = model(nodes, inputs, [tensor("out", [None])], {"z": np.array([0]), "one": floats(1)})
    machine = VirtualMachine(vm.compile(network, threads=1))
    assert np.asarray(machine.invoke("main", floats(1), floats(3), floats(1))).shape == (1,)
