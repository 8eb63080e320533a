"""TVM-compatible API of the auto-scheduler: the names, parameters and defaults of TVM's `auto_scheduler` package.

The package only re-exports. Unsupported features raise `retune.compiler.core.errors.NotYetError`.
"""

from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.task_inputs import (
    get_task_input_buffer,
    register_task_input_buffer,
    register_task_input_check_func,
)
from retune.compiler.schedule.default.layout import LayoutRewriteOption, get_shape_from_rewritten_layout
from retune.compiler.schedule.pretransformed_weights import (
    remove_index_check,
    rewrite_compute_body,
    rewrite_tensor_shape,
)
from retune.compiler.schedule.workload_registry import (
    deserialize_workload_registry_entry,
    load_workload_func_registry,
    make_workload_key,
    register_workload,
    register_workload_tensors,
    save_workload_func_registry,
    serialize_workload_registry_entry,
    workload_key_to_tensors,
)
from retune.compiler.tvm.auto_scheduler import measure, workload_registry
from retune.compiler.tvm.auto_scheduler.build import build
from retune.compiler.tvm.auto_scheduler.compute_dag import ComputeDAG
from retune.compiler.tvm.auto_scheduler.cost_model import PythonBasedModel, RandomModel, XGBModel
from retune.compiler.tvm.auto_scheduler.dispatcher import (
    ApplyHistoryBest,
    ApplyHistoryBestOrSample,
    DispatchContext,
    FallbackContext,
)
from retune.compiler.tvm.auto_scheduler.loop_state import State
from retune.compiler.tvm.auto_scheduler.measure import (
    LocalBuilder,
    LocalRunner,
    MeasureErrorNo,
    MeasureInput,
    MeasureResult,
    ProgramMeasurer,
    PythonBasedMeasureCallback,
    TuningOptions,
)
from retune.compiler.tvm.auto_scheduler.measure_record import (
    RecordReader,
    RecordToFile,
    calc_workload_dis_factor,
    distill_record_file,
    dump_record_to_string,
    load_best_record,
    load_record_from_string,
    load_records,
    recover_measure_input,
    save_records,
)
from retune.compiler.tvm.auto_scheduler.networks import extract_tasks, is_auto_scheduler_enabled
from retune.compiler.tvm.auto_scheduler.remote import LocalRPCMeasureContext, RPCRunner
from retune.compiler.tvm.auto_scheduler.search_policy import (
    EmptyPolicy,
    PreloadCustomSketchRule,
    PreloadMeasuredStates,
    SearchPolicy,
    SketchPolicy,
)
from retune.compiler.tvm.auto_scheduler.search_task import SearchTask, auto_schedule, create_task
from retune.compiler.tvm.auto_scheduler.task_scheduler import (
    LogEstimatedLatency,
    PrintTableInfo,
    TaskScheduler,
    TaskSchedulerCallback,
)

__all__ = [
    "ApplyHistoryBest", "ApplyHistoryBestOrSample", "ComputeDAG", "DispatchContext", "EmptyPolicy", "FallbackContext",
    "HardwareParams", "LayoutRewriteOption", "LocalBuilder", "LocalRPCMeasureContext", "LocalRunner",
    "LogEstimatedLatency", "MeasureErrorNo", "MeasureInput", "MeasureResult", "PreloadCustomSketchRule",
    "PreloadMeasuredStates", "PrintTableInfo", "ProgramMeasurer", "PythonBasedMeasureCallback", "PythonBasedModel",
    "RPCRunner", "RandomModel", "RecordReader", "RecordToFile", "SearchPolicy", "SearchTask", "SketchPolicy", "State",
    "Target", "TaskScheduler", "TaskSchedulerCallback", "TuningOptions", "XGBModel", "auto_schedule", "build",
    "calc_workload_dis_factor", "create_task", "deserialize_workload_registry_entry", "distill_record_file",
    "dump_record_to_string", "extract_tasks", "get_shape_from_rewritten_layout", "get_task_input_buffer",
    "is_auto_scheduler_enabled", "load_best_record", "load_record_from_string", "load_records",
    "load_workload_func_registry", "make_workload_key", "recover_measure_input", "register_task_input_buffer",
    "register_task_input_check_func", "register_workload", "register_workload_tensors", "remove_index_check",
    "rewrite_compute_body", "rewrite_tensor_shape", "save_records", "save_workload_func_registry",
    "serialize_workload_registry_entry", "workload_key_to_tensors", "workload_registry",
]  # fmt: skip

# TVM's scripts import it from `measure`, which its own module imports: set here, there is no cycle.
measure.recover_measure_input = recover_measure_input
