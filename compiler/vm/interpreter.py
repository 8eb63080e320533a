"""In: an executable and what it works with. Out: results of its functions.

Always: calls of functions do not nest in Python, so how deep they go is bounded by a number, not by Python's stack.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from compiler.errors import MachineError
from compiler.vm.blocks import link
from compiler.vm.contents import Contents
from compiler.vm.instructions import Instruction
from compiler.vm.steps import CALL, Registers, Step, Surroundings, step_of

_MOST_FRAMES = 100_000
Note = Callable[[Instruction, float], None]


class Interpreter:
    """Runs functions. Not for several threads at once."""

    def __init__(self, contents: Contents, around: Surroundings) -> None:
        self._functions = contents.functions
        self._around = around
        self._singles: dict[int, list[Step]] = {}
        self._linked: dict[int, list[Step]] = {}

    def forget(self) -> None:
        """Make the steps anew when they are wanted: constants were bound."""
        self._linked.clear()

    def run(self, function: int, args: Sequence[Any], note: Note | None = None) -> Any:
        """The result of a function. With `note` instructions go one by one, and it is told how many seconds each took.

        Raises: MachineError that says at which instruction; what a primitive raises.
        """
        steps_of = self._single_steps if note else self._linked_steps
        control = self._around.control
        frames: list[tuple[int, list[Step], Registers, int, int]] = []
        steps, registers = steps_of(function), self._frame(function, args)
        here = following = 0
        try:
            while True:
                here = following
                if note is None:
                    following = steps[here](registers)
                else:
                    start = time.perf_counter()
                    following = steps[here](registers)
                    note(self._functions[function].instructions[here], time.perf_counter() - start)
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
        registers: Registers = [None] * self._functions[function].registers
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
            singles = self._single_steps(function)
            steps = self._linked[function] = link(self._functions[function].instructions, singles, self._around)
        return steps
