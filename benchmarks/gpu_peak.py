"""Measured peaks of a GPU: float32 multiply-adds and bytes moved per second.

The kernels come from our code generator: sums that stay in registers, and a copy larger than the cache.
"""

from typing import Any

import numpy as np

from retune.compiler import te
from retune.compiler.codegen.nvidia.device_build import build_device_kernel
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.expr import Buffer, Expr, Load, Var, const
from retune.compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Store, block
from retune.compiler.runtime.artifact import ArgSpec, DeviceCode, KernelArtifact, KernelLaunch
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.cuda.driver_interface import Driver, GpuDevice
from retune.compiler.runtime.cuda.program import DeviceProgram, Stopwatch
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Split
from retune.compiler.schedule.task import SearchTask

_THREADS, _CHAINS, _STEPS = 256, 16, 4096
_BLOCKS_EACH = 8
_COPIED = 1 << 28
_PASSES = 5


def chains(blocks: int, threads: int, count: int, steps: int) -> DeviceFunction:
    """A kernel whose threads each start `count` sums and multiply and add `steps` times to each of them."""
    x, y = Buffer("x", (threads,), "float32"), Buffer("y", (blocks, threads), "float32")
    sums = Buffer("sums", (count,), "float32", "local")
    here, place = INDICES[LoopKind.THREAD_X], INDICES[LoopKind.BLOCK_X]
    factor, chain, first, step = Load(x, (here,)), Var("chain"), Var("first"), Var("step")
    start = For(first, count, LoopKind.UNROLL, Store(sums, (first,), factor + te.cast("float32", first)))
    once = Store(sums, (chain,), Load(sums, (chain,)) * factor + factor)
    rounds = For(step, steps, LoopKind.SERIAL, For(chain, count, LoopKind.UNROLL, once))
    total: Expr = Load(sums, (const(0),))
    for number in range(1, count):
        total = total + Load(sums, (const(number),))
    body = Allocate(sums, block(start, rounds, Store(y, (place, here), total)))
    kernel = Kernel(LoopFunction("chains", (x, y), (), body, 1), (blocks, 1, 1), (threads, 1, 1))
    return DeviceFunction("chains", (x, y), (), 1, (kernel,))


def measured_flops(driver: Driver, stream: Any, device: GpuDevice) -> float:
    """Float32 operations a second, a multiply-add being two."""
    blocks = _BLOCKS_EACH * device.facts.multiprocessors
    function = chains(blocks, _THREADS, _CHAINS, _STEPS)
    code = ptx(function, Target("cuda", arch=device.arch)).encode()
    args = (ArgSpec("x", (_THREADS,), "float32", False), ArgSpec("y", (blocks, _THREADS), "float32", True))
    launch = KernelLaunch("chains", (blocks, 1, 1), (_THREADS, 1, 1))
    artifact = KernelArtifact("chains", code, args, 0, "cuda", device=DeviceCode("ptx", (launch,)))
    work = 2.0 * blocks * _THREADS * _CHAINS * _STEPS
    return work / _fastest(driver, stream, device, artifact)


def measured_bandwidth(driver: Driver, stream: Any, device: GpuDevice, elements: int = _COPIED) -> float:
    """Bytes a second, read and written ones together."""
    target = Target("cuda", arch=device.arch)
    x = te.placeholder((elements,), name="x")
    dag = ComputeDAG([x, te.compute((elements,), lambda i: x[i] * 1.0, "y")])
    steps = (
        Split(1, 0, elements, (256, 4)),
        Annotate(1, 0, Annotation.BLOCK_X),
        Annotate(1, 1, Annotation.THREAD_X),
        Annotate(1, 2, Annotation.VECTORIZE),
    )
    task = SearchTask("copy", dag, target, hardware_of(target, 1))
    artifact = build_device_kernel(task, steps, "copy")
    return 8.0 * elements / _fastest(driver, stream, device, artifact)


def _fastest(driver: Driver, stream: Any, device: GpuDevice, artifact: KernelArtifact) -> float:
    arrays = [DeviceArray.allocate(driver, stream, device.number, spec.shape, spec.dtype) for spec in artifact.args]
    try:
        arrays[0].write(np.full(arrays[0].shape, 0.5, "float32"))
        call = DeviceProgram(driver, stream, artifact).bind(arrays)
        watch = Stopwatch(driver, stream)
        return min(watch.passes(call, _PASSES, watch.probe(call)))
    finally:
        for array in arrays:
            array.free()
