"""Writes a loop as instructions: a test, the body, a jump back.

    iteration = 0; rows = nil
    test:  if iteration < count and condition, else go to end
           condition, carried, row = body(iteration, condition, carried)
           rows = cons(row, rows); iteration = iteration + 1; go to test
    end:   collected = stack(rows)

Arrays of one iteration are never written by another, so a body may return its turn.
"""

from collections.abc import Callable, Sequence

from retune.compiler.errors import DefinitionError
from retune.compiler.graph.region import Param
from retune.compiler.vm.instructions import AllocADT, Move, RunRegion
from retune.compiler.vm.primitives import UNKNOWN
from retune.compiler.vm.program_image import LOOP
from retune.compiler.vm.writer import FunctionWriter, scalar

NIL, CONS = 1, 2
"""Tags of lists: empty, and a head with a tail."""
Iteration = Callable[[Sequence[int], Sequence[int]], None]
"""Writes a call of the body: of the registers of its arguments, into those of its results."""


class LoopCode:
    """One loop while it is written."""

    def __init__(
        self,
        writer: FunctionWriter,
        count: int | None,
        condition: int | None,
        carried: Sequence[int],
        rows: Sequence[Param],
    ) -> None:
        """Registers of what the loop starts with; `rows` say what an iteration gives to be collected."""
        self._writer = writer
        self._count = count
        self._rows = tuple(rows)
        self._iteration = self._copied(writer.constant(scalar(0)))
        self._condition = self._copied(writer.constant(scalar(True)) if condition is None else condition)
        self._carried = [self._copied(register) for register in carried]
        self._lists = [writer.fresh() for _ in rows]
        for register in self._lists:
            writer.emit(AllocADT(NIL, register, ()))

    def write(self, iteration: Iteration) -> tuple[list[int], list[int]]:
        """Append the loop. The registers of what is carried out of it, and of what was collected."""
        writer = self._writer
        one = writer.number(1)
        test = writer.here
        ends = () if self._count is None else (self._iteration, self._count)
        (goes_on,) = self._run("goes_on", (*ends, self._condition), counts=str(int(self._count is not None)))
        leave = writer.hold()
        results = [writer.fresh() for _ in range(1 + len(self._carried) + len(self._lists))]
        iteration((self._iteration, self._condition, *self._carried), results)
        self._next(results)
        writer.kill(goes_on)
        back = writer.hold()
        writer.jump(back, test)
        writer.branch(leave, goes_on, one, writer.here)
        writer.kill(goes_on, one, self._iteration, self._condition)
        collected = [self._stacked(register, row) for register, row in zip(self._lists, self._rows, strict=True)]
        return self._carried, collected

    def _next(self, results: Sequence[int]) -> None:
        """Append what makes the results of an iteration the arguments of the next."""
        writer = self._writer
        cut = 1 + len(self._carried)
        # A Move shares the array: nothing writes an array that another register holds, so values need no copy.
        for source, target in zip(results[:cut], (self._condition, *self._carried), strict=True):
            writer.emit(Move(source, target))
        for row, register in zip(results[cut:], self._lists, strict=True):
            # A list grows at its head in constant time; `stack` turns it around once, at the end.
            writer.emit(AllocADT(CONS, register, (row, register)))
        (following,) = self._run("next_turn", (self._iteration,))
        writer.emit(Move(following, self._iteration))
        writer.kill(following, *results)

    def _stacked(self, register: int, row: Param) -> int:
        if row.dtype is None:
            raise DefinitionError(f"nothing says which elements {row.name} has, so a loop cannot collect it")
        dims = () if row.dims is None else row.dims
        sizes = " ".join(str(dim) if isinstance(dim, int) else UNKNOWN for dim in dims)
        (collected,) = self._run("stack", (register,), dims=sizes, dtype=row.dtype)
        self._writer.kill(register)
        return collected

    def _run(self, function: str, inputs: Sequence[int], **attrs: str) -> list[int]:
        """Call a loop function of one result."""
        about = {"kind": LOOP, "function": function, **attrs}
        return self._writer.run(RunRegion, self._writer.tables.primitive(f"{LOOP}.{function}", about), inputs, 1)

    def _copied(self, source: int) -> int:
        register = self._writer.fresh()
        self._writer.emit(Move(source, register))
        return register
