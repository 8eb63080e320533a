"""`BlockSearch`: proposes programs of a task with symbolic extents, for `ask` and `tell` as `SketchPolicy`.

A program is the sizes of a full block and its schedule. A full block is a program of fixed extents, so a `SketchPolicy`
for each size of blocks proposes schedules, and learns from the expected times of the whole kernels. Blocks along axes
that have no fixed extent, such as the rows of attention, have default schedules, in several sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from retune.compiler.ir.guards import Assumptions
from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import CostModel
from retune.compiler.schedule.axis_classes import SymbolicProgram
from retune.compiler.schedule.steps import Block, SizeLimit, dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import mutation
from retune.compiler.search.block_sizes import block_steps, fixed_block, sizes_to_try
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy


@dataclass(slots=True)
class _Blocks:
    """Blocks of one size: their steps, and the search for their schedule, if they have a fixed extent along all axes.
    `seconds` is the best expected time of their programs so far.
    """

    steps: tuple[Block, ...]
    search: SketchPolicy | None
    seconds: float = inf
    proposed: set[str] = field(default_factory=set)


class BlockSearch:
    """Proposes sizes of blocks and schedules of full blocks for a task with symbols."""

    def __init__(self, task: SearchTask, model: CostModel, options: SearchOptions | None = None, seed: int = 0) -> None:
        self.task = task
        self.failed_rules: list[str] = []
        """A sentence for each sketch rule that raised."""
        self._blocks: dict[tuple[Block, ...], _Blocks] = {}
        with Assumptions({}, ()):  # as `lower_symbolic`
            self._add_blocks(model, options, seed)

    def _add_blocks(self, model: CostModel, options: SearchOptions | None, seed: int) -> None:
        task = self.task
        program = SymbolicProgram.of((*task.dag.inputs, *task.dag.outputs), keeps_rows=True)
        for sizes in sizes_to_try(program, task.hardware):
            steps, dag = block_steps(program, sizes), fixed_block(program, sizes)
            search = None
            if dag is not None:
                block = SearchTask(task.name, dag, task.target, task.hardware, layout=task.layout)
                search = SketchPolicy(block, model, options, seed)
                self.failed_rules += [text for text in search.failed_rules if text not in self.failed_rules]
            # The first sizes, in a default schedule, are the default of the task.
            self._blocks[steps] = _Blocks(steps, search, proposed=set() if self._blocks else {dump_steps(steps)})

    def ask(self, count: int, round_index: int, spent: float = 0.0) -> tuple[TaskProgram, ...]:
        """At most `count` unmeasured programs; none when the task is exhausted. `spent` is as of `SketchPolicy.ask`."""
        programs: list[TaskProgram] = []
        untried = [blocks for blocks in self._blocks.values() if dump_steps(blocks.steps) not in blocks.proposed]
        # Default schedules of blocks of all sizes say which sizes are worth a search.
        searched = [(blocks, blocks.search) for blocks in self._blocks.values() if blocks.search]
        for blocks in untried[: count if not searched else -(-count // 2)]:
            programs.append(self._propose(blocks, TaskProgram("", "[]", mutation=mutation.SAMPLE)))
        ranked = sorted(searched, key=lambda pair: pair[0].seconds)
        # The best size has half of the round, and the others take turns; more of them where one has nothing left.
        start = round_index % max(len(ranked) - 1, 1)
        for number, (blocks, search) in enumerate((*ranked[:1], *ranked[1:][start:], *ranked[1:][:start])):
            left = count - len(programs)
            wanted = -(-left // 2) if number == 0 and len(ranked) > 1 else left
            programs += [self._propose(blocks, program) for program in search.ask(wanted, round_index, spent)]
        return tuple(programs)

    def tell(self, results: Sequence[TaskProgram]) -> None:
        """Take in results, with expected times. Raises: ScheduleError when a steps text cannot be read at all."""
        told: dict[tuple[Block, ...], list[TaskProgram]] = {}
        for result in results:
            steps = load_steps(result.steps)
            sizes = tuple(step for step in steps if isinstance(step, Block))
            # Without sizes it is the default schedule of the task, in the first sizes.
            blocks = self._blocks.get(sizes) if sizes else next(iter(self._blocks.values()), None)
            if blocks is None or any(isinstance(step, SizeLimit) for step in steps):
                continue
            blocks.seconds = min(blocks.seconds, result.seconds)
            blocks.proposed.add(result.steps)
            schedule = steps[len(sizes) :]
            if schedule and blocks.search is not None:
                key = blocks.search.task.workload_key
                told.setdefault(sizes, []).append(replace(result, steps=dump_steps(schedule), task_key=key))
        for sizes, own in told.items():
            search = self._blocks[sizes].search
            assert search is not None, "only schedules that a search may have are told"
            search.tell(own)

    @property
    def block_keys(self) -> set[str]:
        """The workload keys of full blocks, of which the cost model learns."""
        return {blocks.search.task.workload_key for blocks in self._blocks.values() if blocks.search}

    @property
    def best_seconds(self) -> float:
        """The least expected time so far, inf before any."""
        return min((blocks.seconds for blocks in self._blocks.values()), default=inf)

    def _propose(self, blocks: _Blocks, program: TaskProgram) -> TaskProgram:
        text = dump_steps((*blocks.steps, *load_steps(program.steps)))
        blocks.proposed.add(text)
        return replace(program, task_key=self.task.workload_key, steps=text)
