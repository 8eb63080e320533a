"""In: the instructions of a function. Out: its steps; a run of kernels is one step, and so is a call of a region.

Always: the same registers hold the same values afterwards as after the instructions one by one. No such step goes
beyond an instruction that jumps, calls or returns, or past a place where a jump may lead to.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from retune.compiler.vm.instructions import Instruction, Invoke, InvokeClosure, KillRegister, jumps, written
from retune.compiler.vm.kernel_block import follow_kernels, step_of_kernels
from retune.compiler.vm.region_run import follow_region, step_of_region
from retune.compiler.vm.steps import Step, Stretch, Surroundings


def link(instructions: Sequence[Instruction], params: int, singles: Sequence[Step], around: Surroundings) -> list[Step]:
    """The steps of a function, at the places of its instructions: `singles`, and where a run of kernels or the call of
    a region begins the one step of that. The first `params` registers hold its arguments.
    """
    return _Linker(instructions, params, singles, around).linked()


class _Linker:
    """One function while its steps are joined."""

    def __init__(
        self, instructions: Sequence[Instruction], params: int, singles: Sequence[Step], around: Surroundings
    ) -> None:
        self._instructions = instructions
        self._singles = singles
        self._around = around
        self._steps = list(singles)
        self._setters = _setters(instructions, params)

    def linked(self) -> list[Step]:
        for start, end in _straight(self._instructions):
            begun, place = start, start
            while place < end:
                found = follow_region(self._instructions, place, end, self._around)
                if found is None:
                    place += 1
                    continue
                call, stop = found
                self._kernels(begun, place)
                self._steps[place] = step_of_region(call, self._stretch(place, stop))
                begun = place = stop
            self._kernels(begun, end)
        return self._steps

    def _kernels(self, place: int, end: int) -> None:
        """Put a step where a run of kernels begins."""
        while place < end:
            run, stop = follow_kernels(self._instructions, place, end, self._around)
            if run.calls:
                self._steps[place] = step_of_kernels(run, self._stretch(place, stop))
            place = max(stop, place + 1)

    def _stretch(self, start: int, stop: int) -> Stretch:
        inside = {register for register, (first, last) in self._setters.items() if start <= first <= last < stop}
        return Stretch(tuple(self._singles[start:stop]), inside, stop, self._tail(stop))

    def _tail(self, place: int) -> Step | None:
        """The step at a place when it says where to go on: then whoever comes there can carry it out at once."""
        instruction = self._instructions[place]
        leads = jumps(instruction) != (1,) or isinstance(instruction, Invoke | InvokeClosure)
        return self._singles[place] if leads else None


def _setters(instructions: Sequence[Instruction], params: int) -> dict[int, tuple[int, int]]:
    """Where each register is set for the first and for the last time; an argument before all instructions."""
    found = dict.fromkeys(range(params), (-1, -1))
    for here, instruction in enumerate(instructions):
        register = written(instruction)
        if register is not None and not isinstance(instruction, KillRegister):
            found[register] = found.get(register, (here, here))[0], here
    return found


def _straight(instructions: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """Where instructions begin and end that always follow each other."""
    entries = {0}
    for here, instruction in enumerate(instructions):
        targets = jumps(instruction)
        if targets != (1,):
            entries.update(here + offset for offset in targets)
            entries.add(here + 1)
    ordered = [*sorted(place for place in entries if place < len(instructions)), len(instructions)]
    yield from pairwise(ordered)
