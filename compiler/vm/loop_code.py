"""In: a loop's count, condition and what it carries. Out: instructions: a test, the body, a jump back.

    turn = 0; rows = nil
    test:  if turn < count and condition, else go to end
           condition, carried, row = body(turn, condition, carried)
           rows = cons(row, rows); turn = turn + 1; go to test
    end:   collected = stack(rows)

Always: arrays of one turn are never written by another, so a body may give its turn away.
"""

from collections.abc import Callable, Sequence

from retune.compiler.graph.region import Param
from retune.compiler.runtime.artifact import ALIGNMENT
from retune.compiler.vm.instructions import AllocADT, AllocTensor, Move
from retune.compiler.vm.primitives import LOOP, UNKNOWN
from retune.compiler.vm.writer import FunctionWriter, Shaped, scalar, sizes_of, write_shaped

NIL, CONS = 1, 2
"""Tags of lists: empty, and a head with a tail."""
Turn = Callable[[Sequence[int], Sequence[int]], None]
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
        """Registers of what the loop starts with; `rows` say what a turn gives to be collected."""
        self._writer = writer
        self._count = count
        self._rows = tuple(rows)
        self._turn = self._copied(writer.constant(scalar(0)))
        self._condition = self._copied(writer.constant(scalar(True)) if condition is None else condition)
        self._carried = [self._copied(register) for register in carried]
        self._lists = [writer.fresh() for _ in rows]
        for register in self._lists:
            writer.emit(AllocADT(NIL, register, ()))

    def write(self, turn: Turn) -> tuple[list[int], list[int]]:
        """Append the loop. The registers of what is carried out of it, and of what was collected."""
        writer = self._writer
        one = writer.number(1)
        test = writer.here
        storage = writer.storage(2 * ALIGNMENT)
        goes_on = self._small(storage, 0, "bool")
        ends = () if self._count is None else (self._turn, self._count)
        attrs = {"kind": LOOP, "function": "goes_on", "counts": str(int(self._count is not None))}
        writer.invoke(self._primitive(attrs), (*ends, self._condition), (goes_on,))
        leave = writer.hold()
        results = [writer.fresh() for _ in range(1 + len(self._carried) + len(self._lists))]
        turn((self._turn, self._condition, *self._carried), results)
        self._next(storage, results)
        writer.kill(storage, goes_on)
        back = writer.hold()
        writer.jump(back, test)
        writer.branch(leave, goes_on, one, writer.here)
        writer.kill(storage, goes_on, one, self._turn, self._condition)
        collected = [self._stacked(register, row) for register, row in zip(self._lists, self._rows, strict=True)]
        return self._carried, collected

    def _next(self, storage: int, results: Sequence[int]) -> None:
        """Append what makes the results of a turn the arguments of the next."""
        writer = self._writer
        cut = 1 + len(self._carried)
        for source, target in zip(results[:cut], (self._condition, *self._carried), strict=True):
            writer.emit(Move(source, target))
        for row, register in zip(results[cut:], self._lists, strict=True):
            writer.emit(AllocADT(CONS, register, (row, register)))
        following = self._small(storage, ALIGNMENT, "int64")
        next_turn = self._primitive({"kind": LOOP, "function": "next_turn"})
        writer.invoke(next_turn, (self._turn,), (following,))
        writer.emit(Move(following, self._turn))
        writer.kill(following, *results)

    def _stacked(self, register: int, row: Param) -> int:
        dims = None if row.dims is None else " ".join(str(d) if isinstance(d, int) else UNKNOWN for d in row.dims)
        attrs = {"kind": LOOP, "dims": dims or "", "item_bytes": sizes_of([row])}

        def primitive(function: str) -> int:
            return self._primitive({**attrs, "function": function})

        rank = primitive("rank_of_stack") if dims is None else None
        shaped = Shaped(rank, primitive("shape_of_stack"), primitive("stack"))
        result = Param(row.name, row.dtype, None if row.dims is None else (None, *row.dims))
        (collected,) = write_shaped(self._writer, shaped, [register], [result])
        self._writer.kill(register)
        return collected

    def _primitive(self, attrs: dict[str, str]) -> int:
        return self._writer.tables.primitive(f"{LOOP}.{attrs['function']}", attrs)

    def _small(self, storage: int, offset: int, dtype: str) -> int:
        place, register = self._writer.number(offset), self._writer.fresh()
        self._writer.emit(AllocTensor(storage, place, dtype, register, ()))
        self._writer.kill(place)
        return register

    def _copied(self, source: int) -> int:
        register = self._writer.fresh()
        self._writer.emit(Move(source, register))
        return register
