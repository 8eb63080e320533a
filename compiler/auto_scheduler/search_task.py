"""In: a computation and a machine, in any of the ways one may give them. Out: a `SearchTask`.

Always: the task of `compiler.schedule.task` itself, with defaults filled in from the target.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler.auto_scheduler.compute_dag import ComputeDAG
from compiler.driver.hardware import completed, hardware_of
from compiler.errors import OptionError
from compiler.measure.task_inputs import register_task_inputs
from compiler.runtime.artifact import Array
from compiler.schedule import dag, task
from compiler.schedule.layout import LayoutRewriteOption
from compiler.schedule.workload_registry import make_workload_key
from compiler.target import HardwareParams, Target


class SearchTask(task.SearchTask):
    """A computation to tune for a machine.

    The computation is a registered function with its arguments, a workload key, or a graph. `target` is a `Target` or
    its text. `hardware_params` default to those of the target and all processors, `layout_rewrite_option` to what is
    usual for an operator that stands alone on that target. `task_inputs` are arrays for inputs that must not be random
    when programs are timed, by the names of their placeholders, or names alone: see `compiler.measure.task_inputs`.
    `desc` is a name for people.
    """

    target_host: Target | None
    task_input_names: tuple[str, ...]

    def __init__(
        self,
        func: Callable[..., Any] | str | None = None,
        args: Sequence[Any] | None = None,
        compute_dag: dag.ComputeDAG | None = None,
        workload_key: str | None = None,
        target: Target | str | None = None,
        target_host: Target | str | None = None,
        hardware_params: HardwareParams | None = None,
        layout_rewrite_option: LayoutRewriteOption | None = None,
        task_inputs: Mapping[str, Array] | Sequence[str] | None = None,
        task_inputs_overwrite: bool = False,
        task_inputs_save_to_file: bool = False,
        desc: str = "",
    ) -> None:
        """Raises: OptionError when the computation or the target is missing or an input is registered already,
        WorkloadError for an unknown workload, TargetError for an unknown target.
        """
        if func is not None:
            workload_key = make_workload_key(func, args or ())
        if workload_key is None and compute_dag is None:
            raise OptionError("a search task needs a function with its arguments, a workload key or a compute graph")
        if target is None:
            raise OptionError("a search task needs a target, such as 'llvm'")
        machine = target if isinstance(target, Target) else Target(target)
        graph = compute_dag if compute_dag is not None else ComputeDAG(workload_key or "")
        defaults = hardware_of(machine, os.cpu_count() or 1)
        hardware = defaults if hardware_params is None else completed(hardware_params, machine)
        option = LayoutRewriteOption.get_target_default(machine) if layout_rewrite_option is None else None
        super().__init__(
            desc or workload_key or "task",
            graph if isinstance(graph, ComputeDAG) else ComputeDAG.of(graph),
            machine,
            hardware,
            workload_key or "",
            option if option is not None else LayoutRewriteOption(layout_rewrite_option or 0),
        )
        host = Target(target_host) if isinstance(target_host, str) else target_host
        object.__setattr__(self, "target_host", host)
        names = register_task_inputs(
            self.workload_key, task_inputs or (), task_inputs_overwrite, task_inputs_save_to_file
        )
        object.__setattr__(self, "task_input_names", names)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (super().__reduce__()[1], self.target_host)

    @property
    def compute_dag(self) -> ComputeDAG:
        """The computation."""
        assert isinstance(self.dag, ComputeDAG)
        return self.dag


def _restored(parts: tuple[Any, ...], target_host: Target | None) -> SearchTask:
    """An unpickled task; its workload is known to this process from now on."""
    plain = task.restored_task(*parts)
    return SearchTask(
        compute_dag=plain.dag,
        workload_key=plain.key or None,
        target=plain.target,
        target_host=target_host,
        hardware_params=plain.hardware,
        layout_rewrite_option=plain.layout,
        desc=plain.name,
    )
