"""Programs: what is refused, what is printed, what is bound, and graphs as data."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import ArtifactError, DefinitionError, ShapeMismatchError
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.graph_bytes import graph_from_bytes, graph_to_bytes
from retune.compiler.graph.graph_region import GraphRegion, of_graph
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.graph.program import MAIN, Arm, Branch, Call, Function, Loop, Program, Statement
from retune.compiler.graph.region import Param, bind

FLAG, COUNT = Param("flag", "bool", ()), Param("count", "int64", ())
X = Param("x", "float32", (2,))


def _graph(op: str) -> Graph:
    builder = GraphBuilder(op, [Value("a", (2,))])
    weight = builder.constant(np.array([2, 3], "float32"), "weight")
    return builder.finish({"b": builder.emit(op, ["a", weight])})


def _program(*body: Statement, more: tuple[Function, ...] = (), result: str = "y") -> Program:
    main = Function(MAIN, (X, FLAG, COUNT), body, (Param(result, "float32", (2,)),))
    return Program("net", {MAIN: main, **{function.name: function for function in more}}, {}, ("y",))


def _one_call(name: str, op: str, *, loop: bool = False) -> Function:
    call = Call(GraphRegion.of(_graph(op)), ("v",), ("w",))
    value = Param("v", "float32", (2,))
    if not loop:
        return Function(name, (value,), (call,), (replace(value, name="w"),))
    params = (Param("turn", "int64", ()), Param("on", "bool", ()), value)
    return Function(name, params, (call,), (params[1], replace(value, name="w"), replace(value, name="w")))


def test_text_of_a_program_with_all_control_flow() -> None:
    functions = (_one_call("half", "add"), _one_call("other", "mul"), _one_call("turn", "mul", loop=True))
    branch = Branch("flag", Arm("half", ("x",)), Arm("other", ("x",)), ("z",))
    loop = Loop("count", "flag", "turn", ("z",), (), ("y",), ("rows",))
    program = _program(branch, loop, more=functions)
    program.verify()
    assert str(program.main).splitlines() == [
        "function main(x: float32[2], flag: bool[], count: int64[]) -> (y: float32[2])",
        "  z = half(x) if flag else other(x)",
        "  y, rows = loop for count iterations while flag turn(z)",
    ]
    assert len(program.regions()) == 2, "the loop's region is that of a branch"


@pytest.mark.parametrize(
    ("body", "result", "message"),
    [
        ((Call(GraphRegion.of(_graph("add")), ("q",), ("y",)),), "y", "reads q before it is defined"),
        ((Call(GraphRegion.of(_graph("add")), ("x",), ("x",)),), "x", "defines x a second time"),
        ((Call(GraphRegion.of(_graph("add")), ("x", "x"), ("y",)),), "y", "has 2 of the inputs of add, which are 1"),
        ((), "y", "nothing computes its result y"),
        ((Branch("flag", Arm("f", ("x",)), Arm("f", ("x",)), ("y",)),), "y", "has no function f"),
    ],
)
def test_malformed_programs_are_refused(body: tuple[Statement, ...], result: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        _program(*body, result=result).verify()


def test_a_graph_is_a_program_of_one_call() -> None:
    graph = _graph("add")
    program = of_graph(graph)
    program.verify()
    assert program.static_graph() is graph
    (region,) = program.regions()
    with pytest.raises(ShapeMismatchError, match="input a"):
        region.specialize({"a": (3,)}, {}, {})
    (result,) = region.evaluate({"a": np.ones(2, "float32")}, {})
    np.testing.assert_array_equal(result, [3, 4])


def _bound(**arrays: Any) -> dict[str, int]:
    params = (Param("ids", "int64", ("batch", "seq")), Param("mask", "int64", ("batch", "seq")), Param("any", None))
    return bind(params, {name: np.asarray(array) for name, array in arrays.items()})


def test_symbols_are_bound() -> None:
    assert _bound(ids=np.zeros((2, 5), "int64"), mask=np.zeros((2, 5), "int64"), any=1.5) == {"batch": 2, "seq": 5}


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 7), "int64", "seq is 5 in dimension 1 of ids and 7 in dimension 1 of mask; these must be equal"),
        ((2,), "int64", r"the input mask: int64\[batch, seq\] has rank 2, and is given an array of rank 1"),
        ((2, 5), "int32", "is given elements of int32"),
    ],
)
def test_arrays_that_do_not_fit(shape: tuple[int, ...], dtype: str, message: str) -> None:
    with pytest.raises(ShapeMismatchError, match=message):
        _bound(ids=np.zeros((2, 5), "int64"), mask=np.zeros(shape, dtype), any=0)


def test_a_missing_array() -> None:
    with pytest.raises(ShapeMismatchError, match="no array is given for the input mask"):
        _bound(ids=np.zeros((2, 5), "int64"))


def test_graphs_come_back_from_bytes() -> None:
    graph = _graph("mul")
    again = graph_from_bytes(graph_to_bytes(graph))
    assert str(again) == str(graph)
    assert again.fingerprint() == graph.fingerprint()


@pytest.mark.parametrize("keep", [0, 5, 9, 60, -1])
def test_cut_bytes_are_refused(keep: int) -> None:
    with pytest.raises(ArtifactError, match="these bytes are not a graph"):
        graph_from_bytes(graph_to_bytes(_graph("mul"))[:keep])
