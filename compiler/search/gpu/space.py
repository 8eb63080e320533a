"""`GpuSketchSpace`: the programs of one sketch for a GPU, as rows of integers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import Step
from retune.compiler.search.annotate import template_state
from retune.compiler.search.genome import Layout, Mask, Rows
from retune.compiler.search.gpu.kernels import kernels_of
from retune.compiler.search.gpu.legality import gpu_legal
from retune.compiler.search.gpu.widths import widths_of
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.rules import SketchContext
from retune.compiler.search.rules.facts import split_steps
from retune.compiler.search.space import Group, SketchSpace, open_splits


@dataclass(frozen=True, eq=False)
class GpuSketchSpace(SketchSpace):
    """All programs of one sketch for a GPU. Loops are bound to blocks and threads, so there is one placement and no
    parallel or vector column; widths are columns.
    """

    has_registers: ClassVar[bool] = True

    @staticmethod
    def _layout(
        dag: ComputeDAG,  # noqa: ARG004 of a CPU's programs it tells which extents to round up
        context: SketchContext,
        state: State,
        steps: Sequence[Step],
        stages: tuple[int, ...],  # noqa: ARG004 no column of a stage
        unrolled: tuple[int, ...],
    ) -> Layout:
        splits = tuple((number, step.extent, parts) for number, step, parts in open_splits(steps))
        return Layout.of(splits, (), unrolled, tuple(widths_of(state, steps, context.hardware)))

    @staticmethod
    def _placements(state: State, options: SearchOptions) -> tuple[tuple[Step, ...], ...]:  # noqa: ARG004
        return ((),)

    def legal(self, group: Group) -> Mask:
        """Which rows of a group a block of the GPU can run."""
        return gpu_legal(group.nests, self.hardware, len(group.rows))

    def sample(self, rng: np.random.Generator, count: int, placements: int | None = None) -> Rows:
        """Draw rows as for a CPU; redraw illegal rows, which most tilings make, up to `sample_attempts` times."""
        rows = self._draw(rng, count, placements)
        if not len(rows):
            return rows
        kept = np.zeros(count, dtype=np.bool_)
        # Rejection sampling keeps the distribution over legal programs; the number of attempts bounds its time.
        for _ in range(self.options.sample_attempts):
            for which, group in self.groups(rows[~kept]):
                kept[np.flatnonzero(~kept)[which]] = self.legal(group)
            if kept.all():
                break
            rows[~kept] = self._draw(rng, int(np.count_nonzero(~kept)), placements)
        else:
            self._exchange_kernels(rng, rows)
        return rows

    def _exchange_kernels(self, rng: np.random.Generator, rows: Rows) -> None:
        """Replace kernels of rows with several kernels, which are rarely all legal, by legal kernels of other rows."""
        state = template_state(self.dag, self.sketch)
        (_, group), *_ = self.groups(rows)  # a GPU's programs have one placement
        kernels = kernels_of(group.nests, len(rows), self.hardware.gpu)
        for kernel in kernels if len(kernels) > 1 else ():
            good = gpu_legal(kernel.nests, self.hardware, len(rows))
            steps = {step for nest in kernel.nests for step in split_steps(state, nest.stage)}
            parts = [np.arange(self.layout.width)[split.columns] for split in self.layout.splits if split.step in steps]
            parts += [np.array([width.column]) for width in self.layout.widths if width.step in steps]
            if good.any() and parts:
                donors = rng.choice(np.flatnonzero(good), int(np.count_nonzero(~good)))
                columns = np.concatenate(parts)
                rows[np.ix_(~good, columns)] = rows[np.ix_(donors, columns)]

    def _group(self, rows: Rows, placement: int) -> Group:
        return Group(rows, statement_nests(self._replay(rows, placement)), self._choices(rows))
