"""Runs the functions of an executable.

Calls of functions do not nest in Python, so how deep they go is bounded by a number, not by Python's stack.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from retune.compiler.errors import MachineError
from retune.compiler.vm.instructions import Instruction, PrimitiveCall
from retune.compiler.vm.kernel_run import Note
from retune.compiler.vm.program_image import ProgramImage
from retune.compiler.vm.steps import CALL, Registers, Step, TimedCallee, VMContext, run_step, step_of

# A recursion that does not end fails here, in one sentence, before the memory is full.
_MOST_FRAMES = 100_000


class Interpreter:
    """Runs functions. Not for several threads at once."""

    def __init__(self, image: ProgramImage, context: VMContext) -> None:
        self._functions = image.functions
        self._context = context
        self._empty: list[Registers] = [[None] * each.registers for each in image.functions]
        self._primitives = image.primitives
        self._steps: dict[int, list[Step]] = {}

    def run(self, function: int, args: Sequence[Any], note: Note | None = None) -> Any:
        """The result of a function. `note` is told how many seconds every instruction took, and every kernel of a
        network of known shapes.

        Raises: MachineError that says at which instruction; what a primitive raises.
        """
        steps_of = self._steps_of if note is None else partial(self._noted_steps, note)
        control = self._context.control
        frames: list[tuple[int, list[Step], Registers, int, int]] = []
        steps, registers = steps_of(function), self._frame(function, args)
        here = following = 0
        try:
            while True:
                here = following
                # Direct-threaded code: each step returns where to go on, no opcode is decoded at run time.
                following = steps[here](registers)
                if following >= 0:
                    continue
                if following == CALL:
                    if len(frames) >= _MOST_FRAMES:
                        raise MachineError(f"calls are nested more than {_MOST_FRAMES} deep")
                    # Frames in a list: recursion in bytecode must not exhaust Python's stack.
                    frames.append((function, steps, registers, control.back, control.dst))
                    function, following = control.function, 0
                    steps, registers = steps_of(function), self._frame(function, control.args)
                    # Arguments must not stay alive longer than the frame that uses them.
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
            # A run that failed must not keep its arrays alive.
            control.value, control.args = None, ()

    def _where(self, function: int, here: int) -> str:
        which = self._functions[function]
        return f"function {which.name}, from instruction {here} on ({which.instructions[here]})"

    def _frame(self, function: int, args: Sequence[Any]) -> Registers:
        # A copy of a list costs less than building one, and each call needs its own frame.
        registers = self._empty[function].copy()
        registers[: len(args)] = args
        return registers

    def _steps_of(self, function: int) -> list[Step]:
        steps = self._steps.get(function)
        if steps is None:
            instructions = self._functions[function].instructions
            steps = [step_of(each, here, self._context) for here, each in enumerate(instructions)]
            self._steps[function] = steps
        return steps

    def _noted_steps(self, note: Note, function: int) -> list[Step]:
        pairs = zip(self._steps_of(function), self._functions[function].instructions, strict=True)
        return [self._noted(step, each, here, note) for here, (step, each) in enumerate(pairs)]

    def _noted(self, step: Step, instruction: Instruction, here: int, note: Note) -> Step:
        name = type(instruction).__name__
        if isinstance(instruction, PrimitiveCall):
            name = self._primitives[instruction.packed].name
            timed = self._context.primitives[instruction.packed].timed
            if timed is not None:
                return _noted_kernels(timed, instruction, here, name, note)
        return _timed(step, name, note)


def _noted_kernels(timed: TimedCallee, call: PrimitiveCall, here: int, name: str, note: Note) -> Step:
    """A step that tells of its kernels one by one, and under its own name of what is left of its time."""
    kernels: list[float] = []

    def take(kernel: str, seconds: float) -> None:
        kernels.append(seconds)
        note(kernel, seconds)

    def rest(_: str, seconds: float) -> None:
        note(name, max(0.0, seconds - sum(kernels)))
        kernels.clear()

    return _timed(run_step(call, here, lambda inputs: timed(inputs, take)), name, rest)


def _timed(step: Step, name: str, note: Note) -> Step:
    def timed(registers: Registers) -> int:
        start = time.perf_counter()
        following = step(registers)
        note(name, time.perf_counter() - start)
        return following

    return timed
