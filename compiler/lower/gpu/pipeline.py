"""Lowers a state whose loops are bound to blocks and threads to GPU kernels.

The passes are one tuple, in order. The result keeps the limits of the GPU.
"""

from retune.compiler.core import config
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir import trace
from retune.compiler.ir.kernel import DeviceFunction, Kernel
from retune.compiler.ir.stmt import LoopFunction, check_function_name
from retune.compiler.ir.verify import verify
from retune.compiler.lower.gpu.async_copies import copy_asynchronously
from retune.compiler.lower.gpu.barriers import insert_barriers
from retune.compiler.lower.gpu.bind_threads import bind_threads
from retune.compiler.lower.gpu.build_kernels import build_kernels
from retune.compiler.lower.gpu.double_buffer_registers import double_buffer_registers
from retune.compiler.lower.gpu.fetch_loops import fetch_loops
from retune.compiler.lower.gpu.limits import check_limits, check_virtual_threads
from retune.compiler.lower.gpu.quad_stores import widen_stores
from retune.compiler.lower.gpu.register_buffers import unroll_register_buffers
from retune.compiler.lower.gpu.software_pipelining import pipeline_loops
from retune.compiler.lower.gpu.sum_loops import reorder_sums
from retune.compiler.lower.gpu.tensor_cores import TensorBuilder
from retune.compiler.lower.gpu.virtual_threads import expand_virtual_threads
from retune.compiler.lower.gpu.warpgroups import GroupBuilder
from retune.compiler.lower.passes import LoopPass, pass_name
from retune.compiler.lower.passes.legalize_loops import legalize_loops
from retune.compiler.lower.passes.simplify_indices import simplify_indices
from retune.compiler.lower.pipeline import finish_pass
from retune.compiler.schedule.state import State

PASSES: tuple[LoopPass, ...] = (
    simplify_indices,
    expand_virtual_threads,
    # Again, since virtual threads write out the `let` values that depend on them.
    simplify_indices,
    # The next three in this order: each looks for the statements that the previous pass leaves.
    copy_asynchronously,
    pipeline_loops,
    double_buffer_registers,
    widen_stores,
    legalize_loops,
    unroll_register_buffers,
    # Takes the loops that unroll_register_buffers has unrolled for the points of a sum.
    reorder_sums,
)
"""The passes while blocks and threads are still loops."""


def lower_for_gpu(state: State, name: str, hardware: HardwareParams, *, check: bool | None = None) -> DeviceFunction:
    """The kernels of a concrete state, ready for code generation or for a simulator.

    `check` verifies every kernel after every pass, by default as RETUNE_CHECK says.
    Raises: ScheduleError; LoweringError, which names the pass whose result is malformed.
    """
    check_function_name(name)
    if hardware.max_threads_per_block < 1:
        raise LoweringError(f"{name}: the hardware parameters are those of a CPU; name a GPU, such as cuda")
    checks = config.checks_ir() if check is None else check
    # Products of warpgroups where the GPU has them.
    builder = GroupBuilder if hardware.gpu.group_tensor else TensorBuilder
    kernels = tuple(_lower(built, hardware, checks) for built in build_kernels(state, name, builder))
    some = kernels[0].body
    function = DeviceFunction(name, some.params, some.workspace, some.outputs, kernels)
    trace.show(trace.LOOPS, name, "loop IR", lambda: str(function))
    return function


def _lower(function: LoopFunction, hardware: HardwareParams, checks: bool) -> Kernel:
    finish_pass(function, "build-kernels", checks)
    check_virtual_threads(function, hardware)
    for loop_pass in PASSES:
        function = finish_pass(loop_pass(function), pass_name(loop_pass), checks)
    kernel = bind_threads(function)
    check_limits(kernel, hardware)
    # Fetches are peeled after the barriers: the same threads access the same elements, so barriers stay right.
    kernel = fetch_loops(insert_barriers(kernel))
    trace.show(trace.PASSES, kernel.body.name, "after fetch-loops", lambda: str(kernel))
    if checks:
        verify(kernel.body, "fetch-loops", kernel.ranges)
    return kernel
