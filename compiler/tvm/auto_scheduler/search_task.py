"""TVM-compatible `SearchTask`: a computation and a machine, with defaults filled in from the target.

It extends the task of `retune.compiler.schedule.task`.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.codegen.build import kernel_source
from retune.compiler.core.config import usable_cpus
from retune.compiler.core.errors import NoRecordError, OptionError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.dispatch import ApplyHistoryBest
from retune.compiler.driver.hardware import complete, hardware_of
from retune.compiler.measure.task_inputs import register_task_inputs
from retune.compiler.model import XGBOptions
from retune.compiler.runtime.artifact import Array
from retune.compiler.schedule import dag, task
from retune.compiler.schedule import state as immutable
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.workload_registry import is_registered, make_workload_key, register_workload_tensors
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler.compute_dag import ComputeDAG
from retune.compiler.tvm.auto_scheduler.cost_model import XGBModel
from retune.compiler.tvm.auto_scheduler.loop_state import State
from retune.compiler.tvm.auto_scheduler.measure import ProgramMeasurer, TuningOptions
from retune.compiler.tvm.auto_scheduler.search_policy import SketchPolicy, search_policy_of

_log = logging.getLogger(__name__)

_WARMUP = XGBOptions().warmup


class SearchTask(task.SearchTask):
    """A computation to tune for a machine.

    The computation is a registered function with its arguments, a workload key, or a graph. `target` is a `Target` or
    its text. `hardware_params` default to the target's with all CPUs, `layout_rewrite_option` to the usual option for a
    single operator on that target. `task_inputs` are arrays for inputs that must not be random in measurements, by the
    names of their placeholders, or names alone: see `retune.compiler.measure.task_inputs`. `desc` is a name for people.
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
        defaults = hardware_of(machine, machine.num_cores or len(usable_cpus()))
        hardware = defaults if hardware_params is None else complete(hardware_params, machine)
        option = LayoutRewriteOption.get_target_default(machine) if layout_rewrite_option is None else None
        super().__init__(
            desc or workload_key or "task",
            graph if isinstance(graph, ComputeDAG) else ComputeDAG.of(graph),
            machine,
            hardware,
            workload_key or "",
            option if option is not None else LayoutRewriteOption(layout_rewrite_option or 0),
        )
        if not is_registered(self.workload_key):  # so that records of it can be recovered
            register_workload_tensors(self.workload_key, self.compute_dag.tensors)
        host = Target(target_host) if isinstance(target_host, str) else target_host
        # The base class is frozen.
        object.__setattr__(self, "target_host", host)
        names = register_task_inputs(
            self.workload_key, task_inputs or (), task_inputs_overwrite, task_inputs_save_to_file
        )
        object.__setattr__(self, "task_input_names", names)

    @property
    def hardware_params(self) -> HardwareParams:
        return self.hardware

    @property
    def layout_rewrite_option(self) -> LayoutRewriteOption:
        """The treatment of packable inputs."""
        return self.layout

    @property
    def desc(self) -> str:
        """A name for people."""
        return self.name

    def tune(self, tuning_options: TuningOptions, search_policy: Any = None, adaptive_training: bool = False) -> None:
        """Search for a fast program. The callbacks of the options receive the measurements, such as `RecordToFile`.

        `search_policy` is a policy of this package, or anything with `ask` and `tell`; by default a `SketchPolicy` with
        an `XGBModel`, which is retrained from scratch less often with `adaptive_training`.
        Raises: OptionError; MeasureError when nothing can be measured, DeviceError when the target GPU is missing.
        """
        self.searched(tuning_options, search_policy, adaptive_training)

    def searched(
        self, tuning_options: TuningOptions, search_policy: Any = None, adaptive_training: bool = False
    ) -> tuple[State, list[Tensor]]:
        """Tune, then apply the best program like `apply_best`; the default schedule if none is valid."""
        policy = search_policy
        if policy is None:
            policy = SketchPolicy(self, XGBModel(num_warmup_sample=_WARMUP, adapative_training=adaptive_training))
        policy = search_policy_of(self, policy)
        reason = ""
        trials, per_round = tuning_options.num_measure_trials, tuning_options.num_measures_per_round
        # As in TVM: nothing is measured, and the first candidate is used.
        if trials == 0:
            best = policy.search(0, None, per_round, None)
        else:
            with ProgramMeasurer.of(tuning_options, [self]) as measurer:
                best = policy.search(trials, tuning_options.early_stopping, per_round, measurer)
                reason = measurer.last_error
        if best is None:
            why = f" (the last one failed: {reason})" if reason else ""
            _log.warning("%s: no valid program was found%s, the untuned one serves", self.name, why)
            best = State(immutable.replay(self.dag, default_steps_of(self)))
        return self.applied(best)

    def apply_best(
        self,
        log_file: str | Path,
        layout_rewrite_option: LayoutRewriteOption | None = None,
        include_compatible: bool = False,
    ) -> tuple[State, list[Tensor]]:
        """The best program of a log, and the arguments of its kernel, for `build`.

        Records of this kind of target count, with this target and layout option first. The layout is
        `layout_rewrite_option`, by default the task's. With `include_compatible` a record of a smaller size is used if
        there is none of this size.
        Raises: NoRecordError when the log has no successful record that fits, LogFormatError when it cannot be read.
        """
        return self.applied(self.best_of(log_file, include_compatible), layout_rewrite_option)

    def best_of(self, log_file: str | Path, include_compatible: bool = False) -> State:
        """The best program of a log, chosen like `apply_best`. Raises: NoRecordError, LogFormatError."""
        history = ApplyHistoryBest(log_file, include_compatible=include_compatible, layout=self.layout)
        state = history.known(self.target, self.workload_key, self.dag)
        if state is None:
            raise NoRecordError(f"{log_file} has no successful record of {self.workload_key} on {self.target.kind}")
        return State(state)

    def applied(self, state: State, option: LayoutRewriteOption | None = None) -> tuple[State, list[Tensor]]:
        """A program in the layout of `option`, by default the task's, and the arguments of its kernel."""
        return self.compute_dag.apply_steps_from_state(state, self.layout if option is None else option)

    def print_best(self, log_file: str | Path, print_mode: str = "schedule") -> str:
        """The best program of a log as text: calls of schedule functions ("schedule"), or PTX ("ptx"), which TVM's mode
        "cuda" means here.

        Raises: like `apply_best`; OptionError for another mode, LoweringError when the program is not for a GPU.
        """
        if print_mode == "schedule":
            return self.compute_dag.print_python_code_from_state(self.best_of(log_file))
        if print_mode not in ("ptx", "cuda"):
            raise OptionError(f"print_mode must be 'schedule' or 'ptx', not {print_mode!r}")
        return kernel_source(self, self.best_of(log_file).steps, "ptx")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (super().__reduce__()[1], self.target_host)

    @property
    def compute_dag(self) -> ComputeDAG:
        """The computation."""
        assert isinstance(self.dag, ComputeDAG)
        return self.dag


def _unpickle(parts: tuple[Any, ...], target_host: Target | None) -> SearchTask:
    """An unpickled task; registers its workload in this process."""
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


_SEARCH_ONLY = TuningOptions()


def create_task(
    func: Callable[..., Any] | str,
    args: Sequence[Any],
    target: Target | str,
    target_host: Target | str | None = None,
    hardware_params: HardwareParams | None = None,
) -> SearchTask:
    """`SearchTask` with these arguments. Raises: as that."""
    warnings.warn("create_task is deprecated; use SearchTask(func=..., args=...)", DeprecationWarning, stacklevel=2)
    return SearchTask(func=func, args=args, target=target, target_host=target_host, hardware_params=hardware_params)


def auto_schedule(
    task: SearchTask, search_policy: Any = None, tuning_options: TuningOptions = _SEARCH_ONLY
) -> tuple[State, list[Tensor]]:
    """Tune a task and apply the best program, see `SearchTask.tune` and `SearchTask.apply_best`."""
    warnings.warn(
        "auto_schedule is deprecated; use task.tune(tuning_options) and task.apply_best(log_file)",
        DeprecationWarning,
        stacklevel=2,
    )
    return task.searched(tuning_options, search_policy)
