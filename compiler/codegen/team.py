"""Writes the functions in which the threads of a team share a parallel loop, also where its extent is symbolic."""

from collections.abc import Sequence

from retune.compiler.codegen.body import BodyEmitter
from retune.compiler.codegen.values import Scalar
from retune.compiler.codegen.work import least_iterations
from retune.compiler.codegen.writer import FunctionWriter
from retune.compiler.ir.expr import dim_expr
from retune.compiler.ir.stmt import For
from retune.compiler.runtime.artifact import TOO_LONG


def sizes_of(emitter: BodyEmitter) -> str:
    """The symbols of a kernel as parameters or arguments that follow others."""
    return "".join(f", i64 {bound.text}" for bound in emitter.env.values() if isinstance(bound, Scalar))


def fork(name: str, index: int, alone: str, condition: str = "%single", stores: Sequence[str] = ()) -> str:
    """The lines that call `alone` on `condition`, and else run a statement by a team of threads after `stores`."""
    return "\n".join(
        (
            # One thread runs the body directly: no team is started, and no pointers go through memory.
            f"  br i1 {condition}, label %serial{index}, label %fork{index}",
            f"serial{index}:",
            f"  call void {alone}",
            f"  br label %joined{index}",
            f"fork{index}:",
            *stores,
            f"  call void @GOMP_parallel(ptr @{name}.team{index}, ptr %context, i32 %threads, i32 0)",
            f"  br label %joined{index}",
            f"joined{index}:",
        )
    )


def team_function(name: str, index: int, count: int, share: Sequence[str], call: str, sizes: str = "") -> str:
    """The function of each thread `%me` of a team of `%all`, which makes the `call` if `%some`, as `share` says. The
    context has the addresses of `count` buffers, and then the values of the symbols `sizes`.
    """
    loads = []
    for number in range(count):
        loads.append(f"  %p{number} = getelementptr ptr, ptr %context, i64 {number}")
        loads.append(f"  %b{number} = load ptr, ptr %p{number}, align 8")
    names = [part.split()[-1] for part in sizes.split(",") if part]
    loads += [line for number, size in enumerate(names, count) for line in _load(size, number)]
    return "\n".join(
        (
            f"define internal void @{name}.team{index}(ptr %context) #0 {{",
            "entry:",
            "  %me32 = call i32 @omp_get_thread_num()",
            "  %all32 = call i32 @omp_get_num_threads()",
            "  %me = zext i32 %me32 to i64",
            "  %all = zext i32 %all32 to i64",
            *share,
            "  br i1 %some, label %work, label %done",
            "work:",
            *loads,
            f"  call void {call}",
            "  br label %done",
            "done:",
            "  ret void",
            "}",
        )
    )


def share_of(extent: str, end: str = "") -> tuple[str, ...]:
    """The lines that compute the share of thread `%me` of `extent` iterations; the names of their values `end` so."""
    # Thread t of T takes [t n / T, (t + 1) n / T): shares differ by at most one iteration and leave no gap.
    return (
        f"  %next{end} = add i64 %me, 1",
        f"  %low.all{end} = mul i64 %me, {extent}",
        f"  %high.all{end} = mul i64 %next{end}, {extent}",
        f"  %low{end} = udiv i64 %low.all{end}, %all",
        f"  %high{end} = udiv i64 %high.all{end}, %all",
        f"  %some{end} = icmp ult i64 %low{end}, %high{end}",
    )


def _load(value: str, slot: int) -> tuple[str, str]:
    """The lines that load a number from the context."""
    pointer = f"%slot.{value[1:]}"
    return (
        f"  {pointer} = getelementptr ptr, ptr %context, i64 {slot}",
        f"  {value} = load i64, ptr {pointer}, align 8",
    )


def symbolic_part(name: str, index: int, loop: For, arguments: str, emitter: BodyEmitter) -> tuple[str, str]:
    """The functions that a parallel loop with a symbolic extent needs beside its body, and the lines that run it: by a
    team if it has enough iterations, and not at all if it has none.
    """
    sizes, count = sizes_of(emitter), len(emitter.storage)
    slot = count + len(emitter.env)
    least = least_iterations(loop, emitter.subtarget.vector_bytes)
    alone = f"@{name}.body{index}({arguments}, i64 0, i64 %extent{index}{sizes})"
    stores = (
        f"  %slot{index} = getelementptr ptr, ptr %context, i64 {slot}",
        f"  store i64 %extent{index}, ptr %slot{index}, align 8",
    )
    call = "\n".join(
        (
            f"  %extent{index} = call i64 @{name}.extent{index}({sizes.removeprefix(', ')})",
            f"  %some{index} = icmp sgt i64 %extent{index}, 0",
            f"  br i1 %some{index}, label %run{index}, label %joined{index}",
            f"run{index}:",
            f"  %few{index} = icmp slt i64 %extent{index}, {least}",
            f"  %alone{index} = or i1 %single, %few{index}",
            fork(name, index, alone, f"%alone{index}", stores),
        )
    )
    part = f"@{name}.body{index}({arguments}, i64 %low, i64 %high{sizes})"
    team = team_function(name, index, count, (*_load("%extent", slot), *share_of("%extent")), part, sizes)
    return f"{extent_function(f'{name}.extent{index}', loop.extent, emitter)}\n\n{team}", call


def limit_part(name: str, index: int, limit: tuple[int, int], emitter: BodyEmitter) -> tuple[str, str]:
    """The function that computes an extent, and the lines of the entry that return `TOO_LONG` where it is larger."""
    extent, most = limit
    sizes = sizes_of(emitter).removeprefix(", ")
    call = "\n".join(
        (
            f"  %limited{index} = call i64 @{name}.limited{index}({sizes})",
            f"  %long{index} = icmp sgt i64 %limited{index}, {most}",
            f"  br i1 %long{index}, label %refuse{index}, label %take{index}",
            f"refuse{index}:",
            f"  ret i32 {TOO_LONG}",
            f"take{index}:",
        )
    )
    return extent_function(f"{name}.limited{index}", extent, emitter), call


def extent_function(symbol: str, extent: int, emitter: BodyEmitter) -> str:
    """The function `symbol` of the sizes that computes an extent."""
    writer = FunctionWriter()
    value = emitter.replace(writer=writer).evaluate(dim_expr(extent))
    writer.put(f"ret i64 {value.text}")
    parameters = sizes_of(emitter).removeprefix(", ")
    return f"define internal i64 @{symbol}({parameters}) #0 {{\nentry:\n{writer.text()}\n}}"
