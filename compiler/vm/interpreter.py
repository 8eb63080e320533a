"""Interprets a program: runs the statements of its functions, one after the other.

The values of one call of a function are a *frame*. A value leaves the frame behind the last statement that reads it;
its memory goes back to the allocator when the caller does not use it either.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from retune.compiler.core.errors import MachineError
from retune.compiler.graph.program import (
    Arm,
    Branch,
    Call,
    Function,
    HostCall,
    Loop,
    Program,
    Statement,
    defines,
    reads,
)
from retune.compiler.graph.region import Param
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.vm.callees import Callees
from retune.compiler.vm.plan_run import PlanRun, SymbolicCallee
from retune.compiler.vm.values import describe, whole_number

if TYPE_CHECKING:
    from retune.compiler.runtime.executor.debug_report import Report


class Profile:
    """The sums of one call."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        self._inside = 0.0
        """Seconds of what ran inside of the statement that runs now."""

    def note(self, name: str, seconds: float) -> None:
        """Take in a kernel, which ran inside of a statement."""
        self._inside += seconds
        self._add(name, seconds)

    def time_step(self, name: str, step: "Step") -> "Step":
        """`step`, which tells under `name` of its time without that of the kernels and statements inside of it."""

        def run(frame: Frame) -> None:
            before, self._inside = self._inside, 0.0
            start = time.perf_counter()
            step(frame)
            seconds = time.perf_counter() - start
            self._add(name, max(0.0, seconds - self._inside))
            self._inside = before + seconds

        return run

    def _add(self, name: str, seconds: float) -> None:
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + seconds, count + 1

    def report(self, device: str, threads: int) -> "Report":
        """The report."""
        rows = [(name, seconds, count, "", "") for name, (seconds, count) in self._sums.items()]
        module = importlib.import_module("retune.compiler.runtime.executor.debug_report")  # few calls are profiled
        report: Report = module.report_of(rows, "VM", device, threads)
        return report


Frame = list[Any]
Step = Callable[[Frame], None]
"""Runs a statement on the values of a frame."""
Run = Callable[[Sequence[Array]], list[Array]]
"""Runs a function: its results for arguments."""
_INT64 = np.dtype(np.int64)
_TRUE = aligned_copy(np.array(True))
_TRUE.flags.writeable = False


class Interpreter:
    """Runs functions of a program. Not for several threads at once."""

    def __init__(self, program: Program, callees: Callees, profile: Profile | None = None) -> None:
        """With `profile` every statement and kernel is timed.

        Raises: ArtifactError when the library lacks something.
        """
        self._program = program
        self._callees = callees
        self._profile = profile
        self._allocator = callees.resources.allocator
        self._runs: dict[str, Run] = {}
        for name in program.functions:
            self._function(name)

    def run(self, name: str, args: Sequence[Array]) -> list[Array]:
        """The results of a function. Raises: MachineError that names the statement; what a region raises."""
        return self._runs[name](args)

    def _function(self, name: str) -> Run:
        if name not in self._runs:
            self._runs[name] = self._link(self._program.functions[name])
        return self._runs[name]

    def _link(self, function: Function) -> Run:
        # Statements become closures over slots of a frame: running one looks up no name and matches no type.
        slots = _Slots(function, self._callees)
        last = {name: number for number, statement in enumerate(function.body) for name in reads(statement)}
        kept = {result.name for result in function.results}
        steps: list[tuple[Step, tuple[int, ...]]] = []
        places: dict[Step, str] = {}
        for number, statement in enumerate(function.body):
            step = self._step(statement, slots)
            if self._profile is not None:
                step = self._profile.time_step(_title(statement), step)
            dead = [name for name in (*reads(statement), *defines(statement)) if last.get(name, -1) <= number]
            if number + 1 == len(function.body):
                dead = []  # the frame ends here, and all that it holds
            numbers = {slots.numbers[name] for name in dead if name in slots.own and name not in kept}
            steps.append((step, tuple(numbers)))
            places[step] = _place(statement)
        results = slots.read([result.name for result in function.results])
        empty, count = slots.empty, len(function.params)

        def run(args: Sequence[Array]) -> list[Array]:
            frame = empty.copy()
            frame[:count] = args
            try:
                for step, dead in steps:
                    step(frame)
                    for number in dead:
                        frame[number] = None
            except MachineError as error:
                raise MachineError(f"{places[step]}: {error}") from error
            return [frame[number] for number in results]

        return run

    def _step(self, statement: Statement, slots: "_Slots") -> Step:
        match statement:
            case Call() | HostCall():
                return self._call(statement, slots)
            case Branch():
                return self._branch(statement, slots)
            case Loop():
                return self._loop(statement, slots)

    def _call(self, call: Call | HostCall, slots: "_Slots") -> Step:
        callee, names = self._callees.of(call, slots.own)
        if self._profile is not None and isinstance(callee, PlanRun | SymbolicCallee):
            callee = partial(callee, note=self._profile.note)
        sources, targets = slots.read(names), slots.define(call.outputs)
        # Between small kernels these lines are most of the time: a comprehension and `zip` would take a microsecond.
        if len(sources) == len(targets) == 1:
            ((source,), (target,)) = sources, targets

            def step_of_one(frame: Frame) -> None:
                frame[target] = callee((frame[source],))[0]

            return step_of_one
        ordered = tuple(enumerate(targets))
        several = itemgetter(*sources) if len(sources) > 1 else None

        def step(frame: Frame) -> None:
            results = callee(several(frame) if several else [frame[number] for number in sources])
            for number, target in ordered:
                frame[target] = results[number]

        return step

    def _branch(self, branch: Branch, slots: "_Slots") -> Step:
        (condition,) = slots.read([branch.condition])
        then, otherwise = self._arm(branch.then, slots), self._arm(branch.otherwise, slots)
        targets = slots.define(branch.outputs)

        def step(frame: Frame) -> None:
            run, sources = then if whole_number(frame[condition], "the condition of a branch") else otherwise
            for target, value in zip(targets, run([frame[number] for number in sources]), strict=True):
                frame[target] = value

        return step

    def _arm(self, arm: Arm, slots: "_Slots") -> tuple[Run, tuple[int, ...]]:
        return self._function(arm.function), slots.read(arm.inputs)

    def _loop(self, loop: Loop, slots: "_Slots") -> Step:
        body = self._function(loop.body)
        count = None if loop.count is None else slots.read([loop.count])[0]
        condition = None if loop.condition is None else slots.read([loop.condition])[0]
        carried, captured = slots.read(loop.carried), slots.read(loop.captured)
        targets, collected = slots.define(loop.outputs), slots.define(loop.collected)
        cut = 1 + len(carried)
        columns = self._program.functions[loop.body].results[cut:]
        array = self._allocator.array

        def step(frame: Frame) -> None:
            most = None if count is None else whole_number(frame[count], "the number of iterations")
            goes_on = _TRUE if condition is None else frame[condition]
            values = [frame[number] for number in carried]
            free = [frame[number] for number in captured]
            rows: list[list[Array]] = [[] for _ in collected]
            iteration = 0
            while whole_number(goes_on, "the condition of a loop") and (most is None or iteration < most):
                # A new array in each iteration: the body may return it.
                number, _ = array((), _INT64, 8)
                number[...] = iteration
                results = body((number, goes_on, *values, *free))
                goes_on, values = results[0], results[1:cut]
                for column, row in zip(rows, results[cut:], strict=True):
                    column.append(row)
                iteration += 1
            for target, value in zip(targets, values, strict=True):
                frame[target] = value
            for target, param in zip(collected, columns, strict=True):
                frame[target] = self._stack(rows.pop(0), param)

        return step

    def _stack(self, rows: Sequence[Array], param: Param) -> Array:
        """`rows` as one array; `param` says what is known of them if there are none.

        Raises: MachineError when they differ in shape or type.
        """
        if not rows:
            if param.dtype is None:
                raise MachineError(f"a loop without iterations collects {param.name}, whose element type is unknown")
            dims = [dim if isinstance(dim, int) else 0 for dim in param.dims or ()]
            return self._allocator.array((0, *dims), np.dtype(param.dtype), 0)[0]
        kinds = sorted({describe(row) for row in rows})
        if len(kinds) != 1:
            raise MachineError(f"a loop collects arrays of different shapes: {', '.join(kinds)}")
        stacked, _ = self._allocator.array((len(rows), *rows[0].shape), rows[0].dtype, len(rows) * rows[0].nbytes)
        for number, row in enumerate(rows):
            stacked[number] = row
        return stacked


class _Slots:
    """Slots of a function's values in its frames, while its statements become steps."""

    def __init__(self, function: Function, callees: Callees) -> None:
        self._callees = callees
        self.numbers = {param.name: number for number, param in enumerate(function.params)}
        self.own = set(self.numbers)
        """Names of parameters and of what statements define, without constants."""
        self.empty: Frame = [None] * len(self.numbers)
        """The frame of a call before it has arguments; constants are in their slots."""

    def read(self, names: Sequence[str]) -> tuple[int, ...]:
        """The slots of values; a constant gets one."""
        for name in names:
            if name not in self.numbers:
                self._add(name, self._callees.constant(name))
        return tuple(self.numbers[name] for name in names)

    def define(self, names: Sequence[str]) -> tuple[int, ...]:
        """New slots of values that a statement defines."""
        for name in names:
            self._add(name, None)
        self.own.update(names)
        return tuple(self.numbers[name] for name in names)

    def _add(self, name: str, value: Array | None) -> None:
        self.numbers[name] = len(self.empty)
        self.empty.append(value)


def _title(statement: Statement) -> str:
    match statement:
        case Call() | HostCall():
            return statement.region.name
        case Branch():
            return "branch"
        case Loop():
            return f"loop of {statement.body}"


def _place(statement: Statement) -> str:
    """Where in the model a statement is, by the name of its first result."""
    kind = {Branch: "the If of ", Loop: "the Loop of "}.get(type(statement), "")
    names = defines(statement)
    return f"{kind}{names[0]!r}" if names else _title(statement)
