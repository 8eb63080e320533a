"""Kernels with a given behavior, such as a crash or an endless loop, compiled from hand-written LLVM IR.

Every kernel takes one input `a` and one output `b` of `ELEMENTS` (or the task's number of) float32 and should compute b
= 2 * a. `build` and `reference` stand in for the code generator: a schedule is one `Pragma` step whose text is the
behavior.
"""

import faulthandler
import os
import signal
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm

from retune.compiler import te
from retune.compiler.core.errors import LoweringError, ScheduleError
from retune.compiler.core.packing import Packing
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Pragma, Step
from retune.compiler.schedule.task import SearchTask

ELEMENTS = 1024

_LOOP = """
declare i32 @unknown_function()
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @sched_getcpu()

@calls = internal global i32 0

define internal void @times_two(ptr %a, ptr %b, i64 %from, i64 %to) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %from, %entry ], [ %next, %loop ]
  %p = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %p
  %y = fmul float %x, 2.0
  %q = getelementptr float, ptr %b, i64 %i
  store float %y, ptr %q
  %next = add i64 %i, 1
  %done = icmp sge i64 %next, %to
  br i1 %done, label %end, label %loop
end:
  ret void
}

define internal void @half(ptr %buffers) {
  %me = call i32 @omp_get_thread_num()
  %first = icmp eq i32 %me, 0
  %a = load ptr, ptr %buffers
  %pb = getelementptr ptr, ptr %buffers, i64 1
  %b = load ptr, ptr %pb
  %from = select i1 %first, i64 0, i64 HALF
  %to = select i1 %first, i64 HALF, i64 COUNT
  call void @times_two(ptr %a, ptr %b, i64 %from, i64 %to)
  ret void
}

define internal void @note_cpu(ptr %buffers) {
  %me = call i32 @omp_get_thread_num()
  %cpu = call i32 @sched_getcpu()
  %number = sitofp i32 %cpu to float
  %pb = getelementptr ptr, ptr %buffers, i64 1
  %b = load ptr, ptr %pb
  %q = getelementptr float, ptr %b, i32 %me
  store float %number, ptr %q
  ret void
}

define i32 @NAME(ptr %buffers, i32 %threads) {
  %a = load ptr, ptr %buffers
  %pb = getelementptr ptr, ptr %buffers, i64 1
  %b = load ptr, ptr %pb
  %pw = getelementptr ptr, ptr %buffers, i64 2
BODY
}
"""

_GOOD = "call void @times_two(ptr %a, ptr %b, i64 0, i64 COUNT)\n"
_BODIES = {
    "good": _GOOD + "ret i32 0",
    "parallel": "call void @GOMP_parallel(ptr @half, ptr %buffers, i32 2, i32 0)\nret i32 0",
    "cpus of threads": "call void @GOMP_parallel(ptr @note_cpu, ptr %buffers, i32 2, i32 0)\nret i32 0",
    "code 7": "ret i32 7",
    "crash": "store volatile i32 1, ptr inttoptr (i64 8 to ptr)\nret i32 0",
    "hang": "br label %forever\nforever:\nstore volatile float 0.0, ptr %b\nbr label %forever",
    "past the end": "call void @times_two(ptr %a, ptr %b, i64 0, i64 COUNT)\n"
    "%q = getelementptr float, ptr %b, i64 COUNT\nstore float 1.0, ptr %q\nret i32 0",
    "before the start": "call void @times_two(ptr %a, ptr %b, i64 0, i64 COUNT)\n"
    "%q = getelementptr float, ptr %b, i64 -1\nstore float 1.0, ptr %q\nret i32 0",
    "reads past the end": _GOOD + "%p = getelementptr float, ptr %a, i64 COUNT\n"
    "%v = load volatile float, ptr %p\nstore float %v, ptr %b\nret i32 0",
    "reads before the start": _GOOD + "%p = getelementptr float, ptr %a, i64 -1\n"
    "%v = load volatile float, ptr %p\nstore float %v, ptr %b\nret i32 0",
    "wrong": _GOOD + "%q = getelementptr float, ptr %b, i64 3\nstore float 9.0, ptr %q\nret i32 0",
    "unfinished": "call void @times_two(ptr %a, ptr %b, i64 1, i64 COUNT)\nret i32 0",
    "nothing": "ret i32 0",
    "wrong later": _GOOD + "%q = getelementptr float, ptr %b, i64 3\n"
    "%n = load i32, ptr @calls\n%n1 = add i32 %n, 1\nstore i32 %n1, ptr @calls\n"
    "%late = icmp sgt i32 %n, 2\nbr i1 %late, label %spoil, label %out\n"
    "spoil:\nstore float 9.0, ptr %q\nbr label %out\nout:\nret i32 0",
    "writes its input": _GOOD + "store float 1.0, ptr %a\nret i32 0",
    "unknown symbol": "%r = call i32 @unknown_function()\nret i32 %r",
    "workspace": "%w = load ptr, ptr %pw\ncall void @times_two(ptr %a, ptr %w, i64 0, i64 COUNT)\n"
    "call void @times_two(ptr %a, ptr %b, i64 0, i64 COUNT)\n"
    "%q = getelementptr float, ptr %w, i64 COUNT\nstore float 1.0, ptr %q\nret i32 0",
    "slow": "br label %again\nagain:\n%k = phi i64 [ 0, %0 ], [ %k1, %again ]\n"
    + _GOOD
    + "%k1 = add i64 %k, 1\n%stop = icmp sge i64 %k1, 3000\nbr i1 %stop, label %out, label %again\nout:\nret i32 0",
}


def compile_ir(text: str) -> bytes:
    """Object code of LLVM IR for this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=0, reloc="pic")
    code: bytes = machine.emit_object(llvm.parse_assembly(text))
    return code


@lru_cache(maxsize=64)
def artifact(behavior: str, name: str = "kernel", elements: int = ELEMENTS) -> KernelArtifact:
    """A kernel of one of the behaviors of this file; "packed" wants its input transposed as 2 x (elements / 2)."""
    text = _LOOP.replace("NAME", name).replace("BODY", _BODIES["good" if behavior == "packed" else behavior])
    text = text.replace("HALF", str(elements // 2)).replace("COUNT", str(elements))
    packing = Packing((2, elements // 2), (1, 0)) if behavior == "packed" else None
    args = (ArgSpec("a", (elements,), "float32", False, packing), ArgSpec("b", (elements,), "float32", True))
    workspace = elements * 4 if behavior == "workspace" else 0
    return KernelArtifact(name, compile_ir(text), args, workspace, "llvm")


def task(elements: int = ELEMENTS, constant: bool = False) -> SearchTask:
    """b = 2 * a over `elements` float32, a being a constant of a layout to choose if asked for."""
    a = te.placeholder((elements,), name="a")
    attrs = {"layout_free_placeholders": (a,)} if constant else {}
    b = te.compute((elements,), lambda i: a[i] * 2.0, name="b", attrs=attrs)
    return SearchTask("double", ComputeDAG([a, b]), Target.host(), HardwareParams(num_cores=2))


def steps(behavior: str) -> tuple[Step, ...]:
    """The schedule that `build` turns into that behavior."""
    return (Pragma(0, 0, behavior),)


def reference(_: ComputeDAG, __: HardwareParams) -> tuple[Step, ...]:
    """The default schedule."""
    return steps("good")


def crashing_reference(_: ComputeDAG, __: HardwareParams) -> tuple[Step, ...]:
    """A default schedule whose kernel crashes."""
    return steps("crash")


def endless_build(search_task: SearchTask, schedule: Sequence[Step], name: str) -> KernelArtifact:  # noqa: ARG001
    """A compiler that never ends."""
    while True:
        time.sleep(60)


def build(search_task: SearchTask, schedule: Sequence[Step], name: str) -> KernelArtifact:
    """Stands in for the code generator; some behaviors show while building."""
    (step,) = schedule
    assert isinstance(step, Pragma)
    match step.text.split(maxsplit=1):
        case ["build-crash"]:
            faulthandler._sigsegv()  # type: ignore[attr-defined]
        case ["build-hang"]:
            time.sleep(60)
        case ["schedule-error"]:
            raise ScheduleError("fuse: the loops are not neighbors")
        case ["lowering-error"]:
            raise LoweringError("the tile needs 300 KiB of stack")
        case ["other-error"]:
            raise KeyError("no such key")
        case ["killed-once", marker] if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case ["killed-always"]:
            os.kill(os.getpid(), signal.SIGKILL)
    behavior = step.text if step.text in _BODIES or step.text == "packed" else "good"
    return artifact(behavior, name, search_task.dag.outputs[0].shape[0])
