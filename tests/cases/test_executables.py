"""Executables: a network with control flow or unknown shapes, and the program and plans that it is compiled to;
tests/cases/executables.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.compiler import vm
from retune.compiler.vm.compiler import VMCompiler
from tests.support.cases import check_case, check_subjects
from tests.support.dynamic_models import BOOL, INT64, Array, Dims, branching, floats, model, node, staying, tensor
from tests.support.small_kernels import CPU

_HASH = re.compile(r"_[0-9a-f]{8}\b")


def _chain(rows: int | None, *nodes: onnx.NodeProto, out: Dims, **weights: Array) -> onnx.ModelProto:
    """Nodes that make `out` of a matrix x of four columns."""
    return model(list(nodes), [tensor("x", [rows, 4])], [tensor("out", out)], weights)


def _product(rows: int | None) -> onnx.ModelProto:
    nodes = node("MatMul", ["x", "w"], ["product"]), node("Relu", ["product"], ["out"])
    return _chain(rows, *nodes, out=[rows, 3], w=floats(4, 3))


def _reshaped(rows: int | None) -> onnx.ModelProto:
    """Two reshapes between kernels."""
    nodes = [
        node("Tanh", ["x"], ["a"]),
        node("Reshape", ["a", "flat"], ["b"]),
        node("Reshape", ["b", "wide"], ["c"]),
        node("Neg", ["c"], ["out"]),
    ]
    return _chain(rows, *nodes, out=[2, None], flat=np.array([-1]), wide=np.array([2, -1]))


def _shape_of() -> onnx.ModelProto:
    """Ones in the shape of the input."""
    one = helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [1.0])
    return _chain(None, node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["out"], value=one), out=[None, 4])


def _split() -> onnx.ModelProto:
    outs = [tensor("a", [None, 4]), tensor("b", [None, 4])]
    return model([node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2)], [tensor("x", [None, 4])], outs)


def _nonzero() -> onnx.ModelProto:
    """The places of what is not 0, as many as there are."""
    return model([node("NonZero", ["x"], ["out"])], [tensor("x", [None, 4])], [tensor("out", [2, None], INT64)])


def _growing() -> onnx.ModelProto:
    """A loop that appends its number to what it carries."""
    body = helper.make_graph(
        [
            node("Cast", ["i"], ["number"], to=1),
            node("Reshape", ["number", "shape"], ["row"]),
            node("Concat", ["carried", "row"], ["longer"], axis=0),
            node("Identity", ["on"], ["still_on"]),
        ],
        "body",
        [tensor("i", [], INT64), tensor("on", [], BOOL), tensor("carried", [None, 1])],
        [tensor("still_on", [], BOOL), tensor("longer", [None, 1])],
    )
    fed = [tensor("count", [], INT64), tensor("x", [None, 1])]
    loop = node("Loop", ["count", "", "x"], ["out"], body=body)
    return model([loop], fed, [tensor("out", [None, 1])], {"shape": np.array([1, 1])})


def _nested(ops: Sequence[str] = ("Tanh", "Neg", "Relu")) -> onnx.ModelProto:
    """A branch within a branch."""
    leaves = [helper.make_graph([node(op, ["x"], [op])], op, [], [tensor(op, [2, 4])]) for op in ops]
    inner = node("If", ["b"], ["inner"], then_branch=leaves[0], else_branch=leaves[1])
    outer = helper.make_graph([inner], "outer", [], [tensor("inner", [2, 4])])
    nodes = [node("If", ["a"], ["out"], then_branch=outer, else_branch=leaves[2])]
    fed = [tensor("a", [], BOOL), tensor("b", [], BOOL), tensor("x", [2, 4])]
    return model(nodes, fed, [tensor("out", [2, 4])])


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "branch": branching,
    "nested_branches": _nested,
    "loop_of_known_shape": partial(staying, 4),
    "loop_of_unknown_rows": partial(staying, "n"),
    "growing_loop": _growing,
    "product": partial(_product, 3),
    "product_of_unknown_rows": partial(_product, None),
    "reshapes": partial(_reshaped, 6),
    "reshapes_of_unknown_rows": partial(_reshaped, None),
    "shape_of": _shape_of,
    "split": _split,
    "nonzero": _nonzero,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_becomes_the_executable_of_its_case(name: str, update_golden: bool) -> None:
    network = NETWORKS[name]()
    program, _ = VMCompiler().optimize(network, CPU)
    code = _HASH.sub("", str(vm.compile(network, CPU))).strip()
    sections = {"input": str(program), "pass": "compile for the virtual machine", "output": code}
    check_case("executables", name, sections, update_golden)


def test_every_file_has_a_network() -> None:
    check_subjects("executables", NETWORKS)
