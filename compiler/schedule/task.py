"""`SearchTask`: a compute graph and a target, the unit of tuning.

It is frozen and picklable. Equal computations have equal keys, unless they are tasks of registered workloads.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.runtime.readable import html_table
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.graph_edits import without_free_layouts
from retune.compiler.schedule.workload_registry import (
    Workload,
    is_registered,
    make_workload_key,
    register_workload_tensors,
    workload_key_to_tensors,
)
from retune.compiler.te.symbols import instantiate, symbols_of


@dataclass(frozen=True, slots=True)
class SampledShape:
    """Values of the symbols of a task, by name, and the share of its calls that have about this shape."""

    sizes: Mapping[str, int] = field(hash=False)
    weight: float

    @property
    def text(self) -> str:
        """The sizes as records have them, as JSON text."""
        return json.dumps(dict(self.sizes), sort_keys=True)


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A computation to tune for a machine. If it has symbolic extents it stands for all its shapes: the time of a
    program is the weighted mean of its times at `shapes`.
    """

    name: str
    """For people; records know the task by its `workload_key`."""
    dag: ComputeDAG
    """The computation."""
    target: Target
    """The target of its kernels."""
    hardware: HardwareParams
    """The machine that the search plans for."""
    key: str = ""
    """The key of its registered workload, which unpickling registers in the new process; empty without a workload."""
    layout: LayoutRewriteOption = LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED
    """The layout of inputs of free layout in its kernels."""
    shapes: tuple[SampledShape, ...] = ()
    """The sample of a task with symbols, with weights that add up to 1; empty for a task of one shape."""

    @classmethod
    def of_workload(
        cls, workload: Workload | str, args: Sequence[object], target: Target, hardware: HardwareParams
    ) -> "SearchTask":
        """The task of a registered function, or its name, with arguments.

        Raises: UnregisteredWorkloadError, or DefinitionError when its tensors make no compute graph.
        """
        key = make_workload_key(workload, args)
        return cls(key, ComputeDAG(workload_key_to_tensors(key)), target, hardware, key)

    @property
    def workload_key(self) -> str:
        """Key of the computation: `key`, or that of the graph, see `ComputeDAG.workload_key`."""
        return self.key or self.dag.workload_key

    @property
    def identity(self) -> str:
        """A string that differs for tasks whose kernels differ: key, computation, target and layout."""
        return f"{self.workload_key} {self.dag.workload_key} {self.target} {self.hardware} {self.layout.name}"

    @property
    def scored_dag(self) -> ComputeDAG:
        """The computation as its kernels run it: layouts are free only where the task's option makes them so."""
        return without_free_layouts(self.dag) if self.layout is LayoutRewriteOption.NO_REWRITE else self.dag

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols in its extents, sorted."""
        return symbols_of((*self.dag.inputs, *self.dag.outputs))

    def at(self, sizes: Mapping[str, int]) -> "SearchTask":
        """The task of one shape. Raises: DefinitionError as `instantiate`."""
        dag = ComputeDAG(instantiate((*self.dag.inputs, *self.dag.outputs), sizes))
        return SearchTask(self.name, dag, self.target, self.hardware, layout=self.layout)

    def __reduce__(self) -> tuple[object, ...]:
        return restored_task, (self.name, self.dag, self.target, self.hardware, self.key, self.layout, self.shapes)

    def _repr_html_(self) -> str:
        tensors = [
            (tensor.name, f"{tensor.dtype}{list(tensor.shape)}") for tensor in (*self.dag.inputs, *self.dag.outputs)
        ]
        return html_table(
            self.name, [*tensors, ("target", str(self.target)), ("GFLOP", f"{self.flop_count / 1e9:.4g}")]
        )

    @property
    def sample(self) -> dict[str, float]:
        """The weights of its shapes by their text; empty for a task of one shape."""
        return {shape.text: shape.weight for shape in self.shapes}

    @property
    def fixed_dags(self) -> tuple[tuple[ComputeDAG, float], ...]:
        """The computation at each of its shapes with its weight; that of one shape itself."""
        return _fixed_dags(self.dag, self.shapes)

    @property
    def flop_count(self) -> float:
        """Floating-point operations of one call; of an expected call, if it has shapes."""
        return sum(weight * dag.flop_count for dag, weight in self.fixed_dags)


@lru_cache(maxsize=1024)
def _fixed_dags(dag: ComputeDAG, shapes: tuple[SampledShape, ...]) -> tuple[tuple[ComputeDAG, float], ...]:
    if not shapes:
        return ((dag, 1.0),)
    tensors = (*dag.inputs, *dag.outputs)
    return tuple((ComputeDAG(instantiate(tensors, shape.sizes)), shape.weight) for shape in shapes)


def restored_task(
    name: str,
    dag: ComputeDAG,
    target: Target,
    hardware: HardwareParams,
    key: str,
    layout: LayoutRewriteOption,
    shapes: tuple[SampledShape, ...] = (),
) -> SearchTask:
    """An unpickled task; its workload is registered in this process."""
    # Records name the computation by this key, which the new process must be able to resolve.
    if key and not is_registered(key):
        register_workload_tensors(key, (*dag.inputs, *dag.outputs))
    return SearchTask(name, dag, target, hardware, key, layout, shapes)
