"""Reference interpreter of a `Program`: NumPy, statement by statement. It is the oracle of tests."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from retune.compiler.core.errors import ShapeMismatchError
from retune.compiler.graph.ir import Array
from retune.compiler.graph.program import Branch, Call, Function, HostCall, Loop, Program
from retune.compiler.graph.region import Param, bind


def run_program(program: Program, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run `program` and return its outputs in order.

    Raises: ShapeMismatchError when an array is missing or does not fit: see `bind`.
    """
    bind(program.inputs, inputs, program.ranges)
    return _run(program, program.main, [inputs[param.name] for param in program.inputs])


def truth(condition: Array, where: str) -> bool:
    """A condition of one element. Raises: ShapeMismatchError that names `where` when it has another number of them."""
    return bool(_one(condition, where))


def _one(array: Array, where: str) -> int:
    if array.size != 1:
        raise ShapeMismatchError(
            f"{where}: the condition or number of iterations has {array.size} elements instead of one"
        )
    return int(array.item())


def stacked(rows: Sequence[Array], described: Param) -> Array:
    """What the iterations of a loop gave, along a new first axis; if there were none, of the dimensions that are
    described.

    Raises: ShapeMismatchError when the rows have different shapes.
    """
    if not rows:
        extents = [extent if isinstance(extent, int) else 0 for extent in described.dims or ()]
        return np.zeros((0, *extents), described.dtype or "float32")
    if len({row.shape for row in rows}) > 1:
        raise ShapeMismatchError(f"the rows {described} that a loop collects have different shapes")
    return np.stack(rows)


def _run(program: Program, function: Function, arguments: Sequence[Any]) -> tuple[Any, ...]:
    held = {**program.constants, **{p.name: a for p, a in zip(function.params, arguments, strict=True)}}
    for statement in function.body:
        match statement:
            case Call() | HostCall():
                region = statement.region
                given = {name: held[read] for name, read in zip(region.inputs, statement.inputs, strict=True)}
                results = region.evaluate(given, program.constants)
                held.update(zip(statement.outputs, results, strict=True))
            case Branch():
                arm = statement.then if truth(held[statement.condition], function.name) else statement.otherwise
                results = _run(program, program.functions[arm.function], [held[name] for name in arm.inputs])
                held.update(zip(statement.outputs, results, strict=True))
            case Loop():
                held.update(_loop(program, statement, held))
    return tuple(held[result.name] for result in function.results)


def _loop(program: Program, loop: Loop, held: Mapping[str, Any]) -> dict[str, Any]:
    function = program.functions[loop.body]
    going = True if loop.condition is None else truth(held[loop.condition], loop.body)
    iterations = None if loop.count is None else _one(held[loop.count], loop.body)
    carried = [held[name] for name in loop.carried]
    captured = [held[name] for name in loop.captured]
    columns: list[list[Array]] = [[] for _ in loop.collected]
    iteration = 0
    while going and (iterations is None or iteration < iterations):
        condition, *results = _run(program, function, [np.asarray(iteration), np.asarray(True), *carried, *captured])
        carried, rows = results[: len(carried)], results[len(carried) :]
        for column, row in zip(columns, rows, strict=True):
            column.append(row)
        going = truth(condition, loop.body)
        iteration += 1
    described = function.results[1 + len(carried) :]
    whole = [stacked(column, row) for column, row in zip(columns, described, strict=True)]
    return dict(zip((*loop.outputs, *loop.collected), (*carried, *whole), strict=True))
