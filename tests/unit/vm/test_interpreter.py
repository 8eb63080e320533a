"""Programs that are written by hand: calls, branches and loops, and the memory of their values."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from retune.compiler import vm
from retune.compiler.core.errors import MachineError, ShapeMismatchError
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.graph_region import GraphRegion
from retune.compiler.graph.ir import Value
from retune.compiler.graph.program import MAIN, Arm, Branch, Call, Function, HostCall, Loop, Program, Statement
from retune.compiler.graph.region import Param
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import cpu
from retune.compiler.vm.executable import Executable

COUNT, FLAG = Param("count", "int64", ()), Param("flag", "bool", ())
X = Param("x", "float32", (4,))
NUMBER, ON = Param("number", "int64", ()), Param("on", "bool", ())


def region(op: str, *inputs: str, width: int = 4) -> GraphRegion:
    """One operator on arrays of float32."""
    builder = GraphBuilder(op, [Value(name, (width,)) for name in inputs])
    return GraphRegion.of(builder.finish({"out": builder.emit(op, inputs)}))


def call(op: str, inputs: Sequence[str], output: str, width: int = 4) -> Call:
    """A call of a region of one operator."""
    return Call(region(op, *(f"i{number}" for number in range(len(inputs))), width=width), tuple(inputs), (output,))


def program(
    params: Sequence[Param],
    body: Sequence[Statement],
    results: Sequence[Param],
    functions: Sequence[Function] = (),
    **constants: Array,
) -> Program:
    """A program whose main function is this one."""
    main = Function(MAIN, tuple(params), tuple(body), tuple(results))
    table = {function.name: function for function in (main, *functions)}
    return Program("by_hand", table, constants, tuple(f"result{number}" for number in range(len(results))))


def machine_of(source: Program, memory: str = "pooled") -> vm.VirtualMachine:
    """A machine for it, after it went through bytes and back."""
    return vm.VirtualMachine(Executable.load_exec(*vm.compile(source).save()), cpu(), memory)


def value(name: str, width: int | None = 4) -> Param:
    return Param(name, "float32", (width,))


def unary(name: str, op: str) -> Function:
    """A function of one operator."""
    return Function(name, (X,), (call(op, ["x"], "y"),), (value("y"),))


ONES = np.arange(1, 5, dtype=np.float32)


def test_a_branch_within_a_branch_runs_one_arm() -> None:
    inner = Branch("on", Arm("negated", ("x",)), Arm("itself", ("x",)), ("y",))
    functions = [
        unary("negated", "neg"),
        Function("itself", (X,), (), (X,)),
        Function("inner", (ON, X), (inner,), (value("y"),)),
    ]
    outer = Branch("flag", Arm("inner", ("on", "x")), Arm("constant", ("x",)), ("out",))
    functions.append(Function("constant", (X,), (), (value("w"),)))
    machine = machine_of(program([FLAG, ON, X], [outer], [value("out")], functions, w=2 * ONES))
    expected = {(True, True): -ONES, (True, False): ONES, (False, True): 2 * ONES, (False, False): 2 * ONES}
    for (flag, on), result in expected.items():
        out = machine.run(np.array(flag), np.array(on), ONES)
        np.testing.assert_array_equal(out, result)
        out[...] = 0  # a caller owns its results: neither the constant nor the input changes
    np.testing.assert_array_equal(machine.run(np.array(False), np.array(True), ONES), 2 * ONES)
    np.testing.assert_array_equal(ONES, np.arange(1, 5))
    with pytest.raises(MachineError, match=r"the If of '[a-z0-9]+': the condition of a branch must be one integer"):
        _with_condition_of_two().run(np.array([True, False]), ONES)


def _with_condition_of_two() -> vm.VirtualMachine:
    branch = Branch("flag", Arm("f", ("x",)), Arm("f", ("x",)), ("out",))
    params = [Param("flag", "bool", (2,)), X]
    return machine_of(program(params, [branch], [value("out")], [unary("f", "neg")]))


def _counting(*, counts: bool = True, condition: bool = False, row: Param | None = None) -> Program:
    """Doubles x in every iteration, and collects x and the numbers of the iterations."""
    body = Function("body", (NUMBER, ON, X), (call("add", ["x", "x"], "y"),), (ON, value("y"), row or X, NUMBER))
    loop = Loop(
        "count" if counts else None, "flag" if condition else None, "body", ("x",), (), ("y",), ("xs", "numbers")
    )
    params = [*([COUNT] if counts else []), *([FLAG] if condition else []), X]
    results = [value("y"), Param("xs", "float32", (None, 4)), Param("numbers", "int64", (None,))]
    return program(params, [loop], results, [body])


@pytest.mark.parametrize("memory", ["pooled", "naive"])
def test_a_loop_carries_counts_and_collects(memory: str) -> None:
    machine = machine_of(_counting(), memory)
    for count in (0, 1, 5):
        y, xs, numbers = machine.run(np.array(count), ONES)
        np.testing.assert_array_equal(y, ONES * 2**count)
        np.testing.assert_array_equal(xs, [ONES * 2**number for number in range(count)] or np.zeros((0, 4)))
        assert numbers.tolist() == list(range(count))


def test_a_loop_ends_before_its_first_iteration_when_its_condition_is_false() -> None:
    machine = machine_of(_counting(condition=True))
    for flag, count in ((False, 0), (True, 3)):
        y, xs, _ = machine.run(np.array(3), np.array(flag), ONES)
        np.testing.assert_array_equal(y, ONES * 2**count)
        assert xs.shape == (count, 4)


def test_a_loop_without_iterations_needs_the_type_of_its_rows() -> None:
    machine = machine_of(_counting(row=Param("x", None, None)))
    assert machine.run(np.array(2), ONES)[1].shape == (2, 4)
    with pytest.raises(MachineError, match="the Loop of 'y': a loop without iterations collects x, whose element type"):
        machine.run(np.array(0), ONES)


def test_rows_of_different_shapes_are_not_stacked() -> None:
    body = Function(
        "body", (NUMBER, ON, value("x", None), value("z", None)), (), (ON, value("z"), value("x"), value("x"))
    )
    loop = Loop("count", None, "body", ("x", "z"), (), ("a", "b"), ("rows",))
    source = program([COUNT, X, value("z", 3)], [loop], [Param("rows", "float32", (None, None))], [body])
    machine = machine_of(source)
    assert machine.run(np.array(1), ONES, ONES[:3]).shape == (1, 4)
    with pytest.raises(MachineError, match=r"different shapes: float32\[3\], float32\[4\]"):
        machine.run(np.array(2), ONES, ONES[:3])


def test_a_loop_within_a_loop_captures_values() -> None:
    inner = Function("inner", (NUMBER, ON, X, value("step")), (call("add", ["x", "step"], "y"),), (ON, value("y")))
    loop = Loop("count", None, "inner", ("x",), ("step",), ("y",), ())
    outer = Function("outer", (NUMBER, ON, X, COUNT, value("step")), (loop,), (ON, value("y")))
    whole = Loop("count", None, "outer", ("x",), ("count", "step"), ("out",), ())
    machine = machine_of(program([COUNT, X, value("step")], [whole], [value("out")], [inner, outer]))
    for count in (0, 1, 3):
        np.testing.assert_array_equal(machine.run(np.array(count), ONES, 2 * ONES), ONES + count * count * 2 * ONES)
    np.testing.assert_array_equal(machine.invoke("inner", 0, True, x=ONES, step=ONES)[1], 2 * ONES)


def test_results_may_repeat_and_be_inputs_or_constants() -> None:
    body = [call("neg", ["x"], "y")]
    machine = machine_of(program([X], body, [value("y"), value("y"), X, value("w")], w=3 * ONES))
    for _ in range(2):
        results = machine.run(ONES)
        for result, expected in zip(results, (-ONES, -ONES, ONES, 3 * ONES), strict=True):
            np.testing.assert_array_equal(result, expected)
        for result in results:
            result += 1


def test_an_error_names_the_function_and_the_statement() -> None:
    grown = Function("grown", (NUMBER, ON, value("x", None)), (call("neg", ["x"], "y"),), (ON, value("y")))
    loop = Loop("count", None, "grown", ("x",), (), ("y",), ())
    source = program([COUNT, value("x", None)], [loop], [value("y")], [grown])
    with pytest.raises(ShapeMismatchError, match="graph neg"):
        machine_of(source).run(np.array(1), ONES[:3])
    with pytest.raises(MachineError, match=r"the Loop of '[a-z0-9]+': the number of iterations must be one"):
        machine_of(program([value("x"), Param("count", "int64", None)], [loop], [value("y")], [grown])).run(
            ONES, np.array([1, 2])
        )


@pytest.mark.parametrize("host", [False, True])
def test_memory_of_a_value_is_used_again_behind_its_last_reader(host: bool) -> None:
    width, length = 1 << 18, 24
    names = ["x", *(f"v{number}" for number in range(length))]
    calls = [call("neg", [source], target, width) for source, target in pairwise(names)]
    body: list[Statement] = [HostCall(each.region, each.inputs, each.outputs) if host else each for each in calls]
    machine = machine_of(program([value("x", width)], body, [value(names[-1], width)]))
    x = np.ones(width, np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(machine.run(x), x)
    allocator: Any = machine._resources.allocator
    assert allocator.reserved <= 4 * x.nbytes, "a value more than its statement reads and defines, and the last result"


def test_memory_of_a_loop_does_not_grow_with_its_iterations() -> None:
    width = 1 << 18
    body = Function("body", (NUMBER, ON, value("x", width)), (call("neg", ["x"], "y", width),), (ON, value("y", width)))
    loop = Loop("count", None, "body", ("x",), (), ("y",), ())
    machine = machine_of(program([COUNT, value("x", width)], [loop], [value("y", width)], [body]))
    x = np.ones(width, np.float32)
    np.testing.assert_array_equal(machine.run(np.array(30), x), x)
    allocator: Any = machine._resources.allocator
    assert allocator.reserved <= 4 * x.nbytes
