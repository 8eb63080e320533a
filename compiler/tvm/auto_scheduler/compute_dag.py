"""TVM-compatible `ComputeDAG` of tensors or of a registered workload's key.

It extends the graph of `retune.compiler.schedule.dag`, with programs represented as `State`.
"""

import warnings
from collections.abc import Sequence

from retune.compiler.core.errors import DefinitionError
from retune.compiler.lower.layout_rewrite import rewrite_layout
from retune.compiler.schedule import dag, python_text
from retune.compiler.schedule import state as immutable
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.steps import Step, steps_of
from retune.compiler.schedule.workload_registry import workload_key_to_tensors
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler.loop_state import State

AnyState = State | immutable.State
"""A program, or its immutable value (TVM's `StateObject`), the answer of dispatch contexts."""


class ComputeDAG(dag.ComputeDAG):
    """A computation: its operations in stage order, with methods for programs of it."""

    def __init__(
        self, compute_or_sche: Sequence[Tensor] | str | None = None, *, compute: Sequence[Tensor] | str | None = None
    ) -> None:
        """From the input and output tensors, or from a workload key. `compute` is the deprecated name of the parameter.

        Raises: DefinitionError when the tensors make no graph, UnknownWorkloadError for an unregistered key.
        """
        if compute is not None:
            warnings.warn("ComputeDAG(compute=...) is now compute_or_sche=...", DeprecationWarning, stacklevel=2)
        source = compute_or_sche if compute is None else compute
        if source is None:
            raise DefinitionError("a compute graph is made of its input and output tensors, or of a workload key")
        super().__init__(workload_key_to_tensors(source) if isinstance(source, str) else source)

    @classmethod
    def of(cls, graph: dag.ComputeDAG) -> "ComputeDAG":
        """A graph of the compiler with these methods."""
        # Not rebuilt from tensors: the analysis of the graph is shared.
        return cls._from_parts(graph.nodes, graph.inputs, graph.outputs)  # type: ignore[return-value]

    def __repr__(self) -> str:
        return str(self)

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs and then the outputs: the arguments of a kernel."""
        return [*self.inputs, *self.outputs]

    @property
    def flop_ct(self) -> float:
        """Operations of one evaluation; -1 if they cannot be counted."""
        return self.flop_count

    def get_init_state(self) -> State:
        """The naive program with a loop nest per operation."""
        return State(immutable.State.initial(self))

    def apply_steps_from_state(
        self, state: AnyState, layout_rewrite: LayoutRewriteOption = LayoutRewriteOption.NO_REWRITE
    ) -> tuple[State, list[Tensor]]:
        """The program of the state's steps, and the arguments of its kernel.

        With `layout_rewrite`, packable inputs get the program's layout, see `LayoutRewriteOption`.
        Raises: ScheduleError when the steps do not fit this graph.
        """
        graph, steps = rewrite_layout(self, _steps(state), LayoutRewriteOption(layout_rewrite))
        return State(immutable.replay(graph, steps)), [*graph.inputs, *graph.outputs]

    def infer_bound_from_state(self, state: AnyState) -> State:
        """The state with the extents of all loops filled in, including attached stages.

        Raises: ScheduleError when a tile size is unknown, or a stage is attached where not all its readers are.
        """
        return State(infer_bounds(immutable.replay(self, _steps(state))))

    def print_python_code_from_state(self, state: AnyState) -> str:
        """The state's steps as Python calls of `retune.compiler.schedule.primitives`."""
        return python_text.print_python_code_from_state(self, immutable.replay(self, _steps(state)))

    def rewrite_layout_from_state(self, state: AnyState) -> "ComputeDAG":
        """The graph whose packable inputs have the program's layout.

        Raises: ScheduleError when the steps do not fit this graph.
        """
        graph, _ = rewrite_layout(self, _steps(state), LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED)
        return ComputeDAG.of(graph)


def _steps(state: AnyState) -> tuple[Step, ...]:
    return steps_of(state) if isinstance(state, immutable.State) else state.steps
