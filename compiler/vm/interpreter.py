"""In: an executable and what it works with. Out: results of its functions.

Always: calls of functions do not nest in Python, so how deep they go is bounded by a number, not by Python's stack.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from retune.compiler.errors import MachineError
from retune.compiler.vm.blocks import link
from retune.compiler.vm.contents import Contents
from retune.compiler.vm.instructions import Instruction
from retune.compiler.vm.steps import CALL, Registers, Step, Surroundings, step_of

_MOST_FRAMES = 100_000
Note = Callable[[Instruction, float], None]


class Interpreter:
    """Runs functions. Not for several threads at once."""

    def __init__(self, contents: Contents, around: Surroundings) -> None:
        self._functions = contents.functions
        self._around = around
        self._empty: list[Registers] = [[None] * each.registers for each in contents.functions]
        self._singles: dict[int, list[Step]] = {}
        self._linked: dict[int, list[Step]] = {}

    def run(self, function: int, args: Sequence[Any], note: Note | None = None) -> Any:
        """The result of a function. With `note` instructions go one by one, and it is told how many seconds each took.

        Raises: MachineError that says at which instruction; what a primitive raises.
        """
        steps_of = self._linked_steps if note is None else partial(self._noted_steps, note)
        control = self._around.control
        frames: list[tuple[int, list[Step], Registers, int, int]] = []
        steps, registers = steps_of(function), self._frame(function, args)
        here = following = 0
        try:
            while True:
                here = following
                following = steps[here](registers)
                if following >= 0:
                    continue
                if following == CALL:
                    if len(frames) >= _MOST_FRAMES:
                        raise MachineError(f"calls are nested more than {_MOST_FRAMES} deep")
                    frames.append((function, steps, registers, control.back, control.dst))
                    function, following = control.function, 0
                    steps, registers = steps_of(function), self._frame(function, control.args)
                    control.args = ()
                    continue
                value, control.value = control.value, None
                if not frames:
                    return value
                function, steps, registers, following, dst = frames.pop()
                registers[dst] = value
        except MachineError as error:
            raise MachineError(f"{self._where(function, here)}: {error}") from error
        finally:
            control.value, control.args = None, ()

    def _where(self, function: int, here: int) -> str:
        which = self._functions[function]
        return f"function {which.name}, from instruction {here} on ({which.instructions[here]})"

    def _frame(self, function: int, args: Sequence[Any]) -> Registers:
        registers = self._empty[function].copy()
        registers[: len(args)] = args
        return registers

    def _single_steps(self, function: int) -> list[Step]:
        if function not in self._singles:
            instructions = self._functions[function].instructions
            self._singles[function] = [step_of(each, here, self._around) for here, each in enumerate(instructions)]
        return self._singles[function]

    def _linked_steps(self, function: int) -> list[Step]:
        steps = self._linked.get(function)
        if steps is None:
            which, singles = self._functions[function], self._single_steps(function)
            steps = link(which.instructions, len(which.params), singles, self._around)
            self._linked[function] = steps
        return steps

    def _noted_steps(self, note: Note, function: int) -> list[Step]:
        pairs = zip(self._single_steps(function), self._functions[function].instructions, strict=True)
        return [_noted(step, instruction, note) for step, instruction in pairs]


def _noted(step: Step, instruction: Instruction, note: Note) -> Step:
    def timed(registers: Registers) -> int:
        start = time.perf_counter()
        following = step(registers)
        note(instruction, time.perf_counter() - start)
        return following

    return timed
