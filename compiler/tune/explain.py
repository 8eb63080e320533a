"""Explains a kernel: computation, schedule, the IR after every pass, code, hot loop, limit, and how it was found."""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from retune.compiler.codegen.backend import backend_of, default_steps_of
from retune.compiler.codegen.build import build_kernel
from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import Target
from retune.compiler.ir import trace
from retune.compiler.measure.record import MeasureRecord, TaskProgram
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.runtime.readable import count, milliseconds
from retune.compiler.runtime.threads.affinity import last_cache_bytes
from retune.compiler.schedule.default.shares import expected_bytes
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.hot_loop import AARCH64, PTX, X86, HotLoop, find_hot_loop, mark
from retune.compiler.tune.limits import MachineLimits, least_seconds

STAGES = ("graph", "te", "steps", "loops", "passes", "llvm", "asm", "ptx")
"""What `Explanation.stage` prints alone. Code for a CPU has no PTX, code for a GPU no assembly."""

_DIALECTS = {"x86_64": X86, "i686": X86, "aarch64": AARCH64, "arm64": AARCH64, "nvptx": PTX}
"""How the assembly of a target is written, by the beginning of its triple."""

_TITLES = {"steps": "steps", "loops": "loop IR", "llvm": "LLVM IR", "asm": "assembly", "ptx": "PTX"}

NEAR = 0.8
"""From this share of the limit on a kernel is as good as the machine: timings scatter by about a tenth, and no real
kernel runs without prologue.
"""

_LATENCY = 8
"""Independent accumulators that keep two multiply-add units of a latency of 4 cycles busy, as CPUs of today have."""

_IN_THE_WAY = 1.0
"""Loads for each multiply-add from which on the load ports limit a loop: CPUs start two of either in a cycle, and a
register tile needs far fewer loads.
"""

_NEW_SECTION = "-" * 80


@dataclass(frozen=True, slots=True)
class Stage:
    """The IR of a kernel after a pass, and how it differs from the one before; `difference` is empty if it does not."""

    kernel: str
    name: str
    text: str
    difference: str


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """What the records of a task say of its search: programs measured, failed, and the best and the median time in
    seconds; `rank` is the place that the cost model gave the best program among `rated` of its round, 0 if unknown.
    """

    trials: int
    failed: int
    best: float
    median: float
    rank: int
    rated: int
    mutation: str

    @classmethod
    def of(cls, records: Iterable[MeasureRecord]) -> "SearchFacts | None":
        """None where there are no records."""
        made = [record for record in records if not record.is_unsearched]
        right = [record for record in made if math.isfinite(record.seconds)]
        if not made:
            return None
        if not right:
            return cls(len(made), len(made), math.inf, math.inf, 0, 0, "")
        best = min(
            (record for record in right if not record.censored), key=lambda record: record.seconds, default=right[0]
        )
        peers = [
            record.predicted
            for record in made
            if (record.run_id, record.round) == (best.run_id, best.round) and record.predicted is not None
        ]
        rank = 0 if best.predicted is None else 1 + sum(record > best.predicted for record in peers)
        middle = median(record.seconds for record in right)
        return cls(len(made), len(made) - len(right), best.seconds, middle, rank, len(peers), best.mutation)

    def __str__(self) -> str:
        if not math.isfinite(self.best):
            return f"{count(self.trials, 'program')} measured, and all failed"
        rated = f"the cost model rated the best one {self.rank} of {self.rated} in its round" if self.rank else ""
        lines = [
            f"{count(self.trials, 'program')} measured, {self.failed} failed",
            f"best {milliseconds(self.best)} ms, median {milliseconds(self.median)} ms",
            rated or "the best one was chosen without a rating",
            f"origin of the best one: {self.mutation or 'a sample of a sketch'}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """A kernel of a network and everything that made it. `seconds` are those of a call, infinite while unknown;
    `nodes` are the lines of the graph that the kernel computes.
    """

    task: SearchTask
    uses: int
    program: TaskProgram | None
    seconds: float
    nodes: str
    search: SearchFacts | None
    limits: MachineLimits | None

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def origin_text(self) -> str:
        """Where the program comes from."""
        record_id = self.program.record_id if self.program else ""
        return f"record {record_id}" if record_id else "default schedule"

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The IR after every pass, in order. A GPU's kernels follow one another."""
        before: dict[str, str] = {}
        stages = []
        for kernel, name, text in self._reached:
            if name.startswith("after "):
                stages.append(Stage(kernel, name.removeprefix("after "), text, difference(before.get(kernel), text)))
                before[kernel] = text
        return tuple(stages)

    @cached_property
    def listing(self) -> str:
        """Assembly, or PTX."""
        return self._text(self.listing_stage)

    @property
    def listing_stage(self) -> str:
        """The last stage of compilation: "asm" or "ptx"."""
        return backend_of(self.task.target).stages[-1]

    @cached_property
    def hot_loop(self) -> HotLoop | None:
        """The hot loop of `listing`; None where its dialect is not known."""
        triple = backend_of(self.task.target).describe(self.task.target)[0]
        dialect = next((dialect for prefix, dialect in _DIALECTS.items() if triple.startswith(prefix)), None)
        return find_hot_loop(self.listing, dialect) if dialect else None

    @property
    def limit(self) -> str:
        """What limits the kernel and how much is left, in one sentence."""
        if not math.isfinite(self.seconds):
            return "no time of this kernel is known: tune the network, or explain it on the machine that it is for"
        if self.limits is None:
            return "the limits are those of the machine that runs this; they are not known here"
        if set(self._types) != {"float32"}:
            return f"the limits are measured for float32; this kernel computes with {', '.join(self._types)}"
        by_arithmetic, by_memory, where = self._bounds(self.limits)
        bound, reached = max(by_arithmetic, by_memory), max(by_arithmetic, by_memory) / self.seconds
        kind = "arithmetic" if by_arithmetic >= by_memory else f"moving data through {where}"
        share = f"it runs at {reached:.0%} of the limit by {kind} ({milliseconds(bound)} ms)"
        # No kernel is faster than the machine; 5% allow for the scatter of both timings.
        if reached > 1.05:
            return f"{share}: the limits, measured just now, are too low, so this machine is busy; try again"
        if reached >= NEAR:
            return f"{share}: only less work would make it faster"
        return f"{share}, so up to {1 / reached:.1f} times as fast is left; {self._suspect()}"

    def stage(self, name: str) -> str:
        """One stage as text. Raises: OptionError when the kernel has no such stage."""
        if name == "graph":
            return self.nodes
        if name == "te":
            return str(self.task.dag)
        if name == "passes":
            return "\n\n".join(
                f"== {stage.kernel}: after {stage.name}\n{stage.difference or 'no change'}" for stage in self.stages
            )
        code = {"asm", "ptx"} - {self.listing_stage}
        known = [stage for stage in STAGES if stage not in code]
        if name not in known:
            raise OptionError(f"a kernel for {self.task.target} has no stage {name!r}; it has {', '.join(known)}")
        return self._text(name)

    def sections(self) -> Iterator[tuple[str, str]]:
        """Titles and strings of the page."""
        yield "Graph", self.nodes
        yield "Computation", self.stage("te")
        yield "Schedule, step by step", self.stage("steps")
        yield "Loop nest", self.nest
        yield "Limit", self._roofline()
        if self.hot_loop is not None:
            yield "Hot loop", f"{self.hot_loop}\n\n{mark(self.listing, self.hot_loop, around=2)}"
        yield "Search", str(self.search) if self.search else "no program of this kernel was measured"

    @cached_property
    def nest(self) -> str:
        """The loops of the schedule, drawn; those of a kernel for all shapes are long."""
        if self.task.shapes:
            return "blocks of the sizes in the schedule, and smaller ones; the stage `loops` has their loops"
        return str(replay(self.task.dag, self.steps))

    @cached_property
    def steps(self) -> Sequence[Step]:
        """The transform steps of the program."""
        return load_steps(self.program.steps) if self.program else default_steps_of(self.task)

    @property
    def title(self) -> str:
        """The kernel in a line."""
        uses = f"called {count(self.uses, 'time')}" if self.uses else "not used: another way to compute it is faster"
        time = f"{milliseconds(self.seconds)} ms a call" if math.isfinite(self.seconds) else "no time known"
        return f"{self.name} for {self.task.target}: {uses}, {time}, {self.origin_text}"

    def __str__(self) -> str:
        changed = [f"  {stage.kernel}: {stage.name}: {_describe_change(stage)}" for stage in self.stages]
        lines = [self.title]
        for title, text in self.sections():
            lines += ["", f"{title} {_NEW_SECTION}"[:80], text.rstrip()]
            if title == "Loop nest":
                lines += ["", f"Passes {_NEW_SECTION}"[:80], *changed]
        return "\n".join([*lines, ""])

    @cached_property
    def _reached(self) -> tuple[tuple[str, str, str], ...]:
        """Kernel, name and text of every stage of compilation."""
        reached: list[tuple[str, str, str]] = []

        def note(kernel: str, stage: str, text: Callable[[], str]) -> None:
            reached.append((kernel, stage, text()))

        with trace.observe_stages(note):
            build_kernel(self.task, self.steps, "kernel")
        return tuple(reached)

    def _text(self, stage: str) -> str:
        return next((text for _, name, text in self._reached if name == _TITLES[stage]), "")

    @property
    def _types(self) -> list[str]:
        return sorted({tensor.dtype for tensor in (*self.task.dag.inputs, *self.task.dag.outputs)})

    def _bounds(self, limits: MachineLimits) -> tuple[float, float, str]:
        """Seconds that arithmetic and moving data take at least, and where the data is."""
        size = expected_bytes(self.task)
        # The roofline model (Williams, Waterman, Patterson, 2009) with one of two bandwidths.
        is_cached = size <= last_cache_bytes()
        rate, where = (limits.cache_gbs, "the caches") if is_cached else (limits.memory_gbs, "memory")
        return self.task.flop_count / limits.peak_gflops / 1e9, size / rate / 1e9, where

    def _suspect(self) -> str:
        """What the hot loop says of a kernel that is far from its limit."""
        loop = self.hot_loop
        if loop is None:
            return "its code cannot be read here"
        if loop.spills:
            return f"the hot loop spills registers ({count(loop.spills, 'time')} an iteration): its tile is too large"
        if self.task.flop_count and not loop.multiply_adds and not loop.arithmetic:
            return "the hot loop moves data and computes nothing"
        if loop.registers and 0 < loop.accumulators < _LATENCY:
            return (
                f"the hot loop sums into {count(loop.accumulators, 'register')}: too few to hide the latency of a "
                "multiply-add, so a larger register tile would help"
            )
        if loop.loads > _IN_THE_WAY * max(loop.multiply_adds + loop.arithmetic, 1):
            return "the hot loop loads more than it computes: a larger register tile would reuse what it loads"
        return "the hot loop is sound, so time goes where tiles are loaded, to threads that wait, or to outer loops"

    def _roofline(self) -> str:
        size = expected_bytes(self.task)
        lines = [
            f"{self.task.flop_count:,.0f} operations, {size:,} bytes, {self.task.flop_count / size:.1f} operations/byte"
        ]
        if self.limits is not None:
            known = self.limits
            lines.append(
                f"{count(known.threads, 'thread')} of this machine: {known.peak_gflops:.0f} GFLOP/s, "
                f"{known.cache_gbs:.0f} GB/s in the caches, {known.memory_gbs:.0f} GB/s in memory"
            )
        if math.isfinite(self.seconds) and self.task.flop_count:
            lines.append(f"the kernel: {self.task.flop_count / self.seconds / 1e9:.1f} GFLOP/s")
        return "\n".join([*lines, self.limit])


def time_kernel(task: SearchTask, steps: Sequence[Step], threads: int) -> float:
    """Seconds of a call with arrays in the caches, the best of several; infinite for another target."""
    if task.target != Target.host():
        return math.inf
    function = KernelFunction(load_kernels([build_kernel(task, steps, "kernel")])["kernel"])
    random = np.random.default_rng(0)
    inputs = [
        random.standard_normal(tensor.shape).astype(tensor.dtype)
        if tensor.dtype.startswith("float")
        else np.zeros(tensor.shape, tensor.dtype)
        for tensor in task.dag.inputs
    ]
    run = function.kernel.bind([*function.prepared(*inputs), *function.outputs()], threads)
    return least_seconds(run)


def find_names(names: Sequence[str], wanted: str) -> list[str]:
    """The names that begin with `wanted`, or the name itself. Raises: OptionError with the nearest names."""
    if wanted in names:
        return [wanted]
    matches = [name for name in names if name.startswith(wanted.rstrip("…").rstrip("."))]
    if not matches:
        # No cutoff: some suggestion helps more than none.
        close = difflib.get_close_matches(wanted, names, n=3, cutoff=0) or list(names[:3])
        raise OptionError(f"there is no kernel {wanted!r}; the nearest are {', '.join(close)}")
    return matches


def difference(before: str | None, after: str) -> str:
    if before is None:
        return after
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    return "\n".join(list(lines)[2:])


def _describe_change(stage: Stage) -> str:
    if stage.difference == stage.text:
        return f"{count(len(stage.text.splitlines()), 'line')}"
    added = sum(line.startswith("+") for line in stage.difference.splitlines())
    removed = sum(line.startswith("-") for line in stage.difference.splitlines())
    return f"+{added} -{removed} lines" if added or removed else "no change"
