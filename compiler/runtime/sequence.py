"""Runs bound kernels in order, in one call.

The loop is machine code that reads a table: between two kernels the interpreter does nothing and nothing is allocated.
The interpreter lock is released during the loop; signals are handled after the last kernel.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from retune.compiler.runtime.loader import MOST_SYMBOLS, BoundKernel, native_address
from retune.compiler.runtime.threads import thread_places

_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32)
_NAME = "retune_sequence"
_NOT_PLACED, _ATTEMPTS = -1, 3
_SPIN_CYCLES, _WAKE_CYCLES = 150_000, 190_000
"""How long a thread waits before it sleeps, and how long it takes to wake up: some 50 µs and 57 µs."""


def _call(symbols: int) -> str:
    """The block that calls a kernel with so many sizes."""
    numbers = range(symbols)
    loads = "".join(
        f"  %p{symbols}.{n} = getelementptr i64, ptr %sizes, i64 {n}\n"
        f"  %s{symbols}.{n} = load i64, ptr %p{symbols}.{n}\n"
        for n in numbers
    )
    sizes = "".join(f", i64 %s{symbols}.{n}" for n in numbers)
    call = f"  %code{symbols} = call i32 %function(ptr %buffers, i32 %threads{sizes})\n"
    return f"call{symbols}:\n{loads}{call}  br label %called\n"


# A loop of LLVM text and not a C extension: the package needs no compiler when it is installed.
_TEXT = f"""
define i64 @{_NAME}(ptr %table, i64 %count, i32 %team, i32 %key) {{
entry:
  %before = alloca [{thread_places.MASK_BYTES} x i8], align 8
  %several = icmp sgt i32 %team, 1
  br i1 %several, label %find, label %test
find:
  %found = call ptr @retune_places(i32 %team, i32 %key)
  %unknown = icmp eq ptr %found, null
  br i1 %unknown, label %not_placed, label %test
not_placed:
  ret i64 {_NOT_PLACED}
test:
  %i = phi i64 [ 0, %entry ], [ 0, %find ], [ %next, %called ]
  %places = phi ptr [ null, %entry ], [ %found, %find ], [ %places, %called ]
  %bound = phi i1 [ false, %entry ], [ false, %find ], [ %is_bound, %called ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %look, label %done
look:
  %free = icmp eq ptr %places, null
  %settled = or i1 %free, %bound
  br i1 %settled, label %body, label %check
check:
  %moved = call i1 @retune_was_moved(ptr %places)
  br i1 %moved, label %bind, label %body
bind:
  %can_be = call i1 @retune_bind_caller(ptr %places, ptr %before)
  %first = icmp eq i64 %i, 0
  %released = and i1 %can_be, %first
  br i1 %released, label %release, label %body
release: ; threads that the first region creates must not inherit a share
  %free_again = call i32 @sched_setaffinity(i32 0, i64 {thread_places.MASK_BYTES}, ptr %before)
  br label %body
body:
  %is_bound = phi i1 [ %bound, %look ], [ false, %check ], [ %can_be, %bind ], [ false, %release ]
  %row = getelementptr [5 x i64], ptr %table, i64 %i
  %function = load ptr, ptr %row
  %second = getelementptr i64, ptr %row, i64 1
  %buffers = load ptr, ptr %second
  %third = getelementptr i64, ptr %row, i64 2
  %wide = load i64, ptr %third
  %threads = trunc i64 %wide to i32
  %fourth = getelementptr i64, ptr %row, i64 3
  %symbols = load i64, ptr %fourth
  %fifth = getelementptr i64, ptr %row, i64 4
  %sizes = load ptr, ptr %fifth
  switch i64 %symbols, label %call0 [ {" ".join(f"i64 {n}, label %call{n}" for n in range(1, MOST_SYMBOLS + 1))} ]
{"".join(map(_call, range(MOST_SYMBOLS + 1)))}called:
  %code = phi i32 {", ".join(f"[ %code{n}, %call{n} ]" for n in range(MOST_SYMBOLS + 1))}
  %next = add i64 %i, 1
  %good = icmp eq i32 %code, 0
  br i1 %good, label %test, label %failed
failed:
  %low = zext i32 %code to i64
  %high = shl i64 %next, 32
  %both = or i64 %high, %low
  br label %done
done:
  %result = phi i64 [ 0, %test ], [ %both, %failed ]
  %to_restore = phi i1 [ %bound, %test ], [ %is_bound, %failed ]
  br i1 %to_restore, label %restore, label %end
restore:
  %ignored = call i32 @sched_setaffinity(i32 0, i64 {thread_places.MASK_BYTES}, ptr %before)
  br label %end
end:
  ret i64 %result
}}
{thread_places.FUNCTIONS}
"""
"""A row of the table is a `BoundKernel.row`. Returns 0;
the code of the failed kernel with its 1-based number in the upper half; or `_NOT_PLACED`, having run none, if the
`team` threads of the caller's regions (more than 1) must be placed first.
"""


class KernelSequence:
    """Kernels that run one after another; arrays they are rebound to later are used from then on."""

    __slots__ = ("_count", "_function", "_kernels", "_pointer", "_table", "_team")

    def __init__(self, kernels: Sequence[BoundKernel]) -> None:
        self._kernels = tuple(kernels)
        _spare_sleepers(kernels)
        words = [word for kernel in kernels for word in kernel.row]
        # Rows hold the address of each kernel's pointers, not the pointers: rebinding a kernel needs no new table.
        self._table = (ctypes.c_uint64 * len(words))(*words)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._table))
        self._count = ctypes.c_int64(len(self._kernels))
        team = max((kernel.threads for kernel in kernels if kernel.is_parallel), default=1)
        # Threads that a Python function starts while the caller is bound would inherit its share.
        is_free = any(kernel.calls_back for kernel in kernels) or not thread_places.binds_threads()
        self._team = 1 if is_free else team
        self._function = _loop()

    def __call__(self) -> None:
        """Run all kernels, or up to the first that fails. Raises: like that `BoundKernel`."""
        result = self._function(self._pointer, self._count, self._team, thread_places.KEY)
        if result == _NOT_PLACED:
            result = self._place_and_run()
        if result:
            self._kernels[(result >> 32) - 1].fail(ctypes.c_int32(result & 0xFFFFFFFF).value)

    def _place_and_run(self) -> int:
        for _ in range(_ATTEMPTS):
            thread_places.place_threads(self._team)
            # Work in between, such as a signal handler that runs a network, may place them differently.
            result: int = self._function(self._pointer, self._count, self._team, thread_places.KEY)
            if result != _NOT_PLACED:
                return result
        unplaced: int = self._function(self._pointer, self._count, 1, thread_places.KEY)
        return unplaced


def _spare_sleepers(kernels: Sequence[BoundKernel]) -> None:
    """Let kernels run alone where threads have gone to sleep and save less than it takes them to wake up. They sleep
    after a kernel with long serial work, such as the steps of a recurrent layer; the sequence may run again and again.
    """
    serial = [number for number, kernel in enumerate(kernels) if kernel.work[0] > _SPIN_CYCLES]
    for first, end in pairwise([*serial, *(number + len(kernels) for number in serial[:1])]):
        stretch = [kernels[number % len(kernels)] for number in range(first, end)]
        # Two threads save half of the cycles, which are overestimated by up to two.
        if sum(kernel.work[1] for kernel in stretch) < 4 * _WAKE_CYCLES:
            for kernel in stretch:
                kernel.run_alone()


@cache
def _loop() -> Callable[..., int]:
    return _RUN(native_address(_TEXT, _NAME))
