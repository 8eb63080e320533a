"""Generates a kernel that evicts cache lines from all caches (x86 only).

Its only argument is an int64 array of shape (RANGES, 2): the address of a first line, and the number of following lines
(0: nothing to do). A line is 64 bytes.
"""

from functools import lru_cache

from retune.compiler.codegen.cpu import compile_module, describe
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.target import Target

RANGES = 64
"""Most buffers of one call."""
LINE = 64

_NAME = "retune_flush"
_TEXT = f"""
declare void @llvm.x86.INSTRUCTION(ptr)
declare void @llvm.x86.sse2.mfence()

define i32 @{_NAME}(ptr %buffers, i32 %threads) {{
entry:
  %table = load ptr, ptr %buffers
  br label %range
range:
  %r = phi i64 [ 0, %entry ], [ %r1, %next ]
  %row = getelementptr {{ ptr, i64 }}, ptr %table, i64 %r
  %first = load ptr, ptr %row
  %pcount = getelementptr {{ ptr, i64 }}, ptr %table, i64 %r, i32 1
  %count = load i64, ptr %pcount
  br label %test
test:
  %i = phi i64 [ 0, %range ], [ %i1, %line ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %line, label %next
line:
  %offset = mul i64 %i, {LINE}
  %p = getelementptr i8, ptr %first, i64 %offset
  call void @llvm.x86.INSTRUCTION(ptr %p)
  %i1 = add i64 %i, 1
  br label %test
next:
  %r1 = add i64 %r, 1
  %done = icmp eq i64 %r1, {RANGES}
  br i1 %done, label %end, label %range
end:
  call void @llvm.x86.sse2.mfence()
  ret i32 0
}}
"""


@lru_cache(maxsize=1)
def flush_kernel() -> KernelArtifact | None:
    """The kernel; None where the CPU has no known instruction for it."""
    target = Target.host()
    triple, _, features = describe(target)
    if not triple.startswith("x86_64"):
        return None
    # clflushopt, unlike clflush, is not ordered with other flushes: many are in flight until the fence at the end.
    several = "+clflushopt" in features.split(",")
    text = _TEXT.replace("INSTRUCTION", "clflushopt" if several else "sse2.clflush")
    table = ArgSpec("table", (RANGES, 2), "int64", False)
    return KernelArtifact(_NAME, compile_module(text, target), (table,), 0, str(target))
