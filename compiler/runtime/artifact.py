"""The result of code generation for one program, as plain data, and its description as JSON values.

It is frozen and picklable and has no handle into LLVM or the operating system; a loader needs nothing else.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from retune.compiler.core.dtype import Array as Array
from retune.compiler.core.dtype import item_bytes, number_type
from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.json_reader import JsonObject, integer, string
from retune.compiler.core.packing import Packing
from retune.compiler.ir.dims import dim_from_json, dim_to_json

# A cache line of x86, and the width of an AVX-512 register: no aligned vector crosses a line.
ALIGNMENT = 64
"""Every buffer handed to a kernel starts at a multiple of this many bytes."""

MOST_SIZE = 1 << 31
"""Extents are smaller: products of two of them are numbers of 64 bits."""
TOO_LONG = 2
"""What a kernel returns where a row that it keeps on the stack would be too long."""


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """One buffer of a kernel.

    `shape` is the logical shape in elements; with `packing` the buffer holds these elements packed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_output: bool
    packing: Packing | None = None

    def __post_init__(self) -> None:
        if self.packing is not None:
            try:
                self.packing.check(self.shape)
            except ArtifactError as error:
                raise ArtifactError(f"{self.name}: {error}") from None

    @property
    def buffer_shape(self) -> tuple[int, ...]:
        """The shape of the buffer: flat if packed."""
        return self.shape if self.packing is None else (self.size,)

    @property
    def size(self) -> int:
        return math.prod(self.shape) if self.packing is None else self.packing.size

    @property
    def nbytes(self) -> int:
        """Bytes that the kernel may touch."""
        return self.size * item_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class ExternBuffer:
    """An array argument of a registered function: dense, and written by the function if `writable`."""

    shape: tuple[int, ...]
    dtype: str
    writable: bool


ExternArgument = ExternBuffer | int | float | str | bool


@dataclass(frozen=True, slots=True)
class ExternCall:
    """A kernel's call of a registered function, with its arguments.

    The kernel calls the C symbol `int32_t SYMBOL(void** buffers)`, which its loader provides: `buffers` holds the
    addresses of the arrays among `args`, in order. 0 = success; any other code ends the kernel with that code.
    """

    symbol: str
    function: str
    args: tuple[ExternArgument, ...]


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of a function on a GPU. The assembler reports, per thread, `registers` (32-bit) and `spilled` bytes, 0
    without an assembler. `shared` are the bytes of shared memory per block of the launch, besides static ones.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int = 0
    spilled: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """How to run code for a GPU: its kind ("cubin", or "ptx", which the driver compiles), its launches in order, and
    the workspace offset of each temporary buffer. Every launch takes the addresses of all arguments and then of these
    buffers. `ptx` is the source of a cubin, for a driver older than the assembler.
    """

    kind: str
    launches: tuple[KernelLaunch, ...]
    workspace: tuple[int, ...] = ()
    ptx: str = ""


@dataclass(frozen=True, slots=True)
class KernelArtifact:
    """Object code of one kernel and its buffers. For a GPU, `device` says how to run it; the following is about CPUs.

    The C symbol is `int32_t NAME(void** buffers, int32_t num_threads, int64_t size …)`, with the values of `symbols`,
    on which shapes of `args` and `workspace_bytes` may depend; most kernels have none. `sizes` are values of theirs, in
    order, where the kernel is for one shape. `buffers` holds the addresses of `args` in order (inputs, then outputs),
    then a workspace of `workspace_bytes` (null if that is 0). 0 = success. `calls` are the registered functions that it
    calls, which the loading process must have.
    """

    name: str
    object_code: bytes
    args: tuple[ArgSpec, ...]
    workspace_bytes: int
    target: str
    calls: tuple[ExternCall, ...] = ()
    device: DeviceCode | None = None
    symbols: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    work: tuple[int, int] = (0, 0)
    """Estimated cycles of what a single thread runs, and of what threads may share; 0 where unknown."""

    def at(self, sizes: Mapping[str, int]) -> "KernelArtifact":
        """The kernel with these values of its symbols, and the shapes of its buffers for them.

        Raises: ArtifactError when a value is missing, no symbol's, or out of range.
        """
        if not self.symbols and not sizes:
            return self
        if sorted(sizes) != sorted(self.symbols):
            raise ArtifactError(f"kernel {self.name} needs values of {list(self.symbols)}; given are {dict(sizes)}")
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < MOST_SIZE:
                raise ArtifactError(f"kernel {self.name}: {name} is {size!r:.80}; it is an integer from 0 to 2**31 - 1")
        shapes = [tuple(_number(extent, sizes) for extent in arg.shape) for arg in self.args]
        for arg, shape in zip(self.args, shapes, strict=True):
            if min(shape, default=0) < 0 or max(shape, default=0) >= MOST_SIZE:
                raise ArtifactError(f"kernel {self.name}, argument {arg.name}: no array has the shape {list(shape)}")
        args = (replace(arg, shape=shape) for arg, shape in zip(self.args, shapes, strict=True))
        workspace = _number(self.workspace_bytes, sizes)
        numbers = tuple(sizes[name] for name in self.symbols)
        return replace(self, args=tuple(args), workspace_bytes=workspace, sizes=numbers)

    def sizes_of(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The values of the symbols that are extents of arguments by themselves, from the first arguments' shapes."""
        sizes: dict[str, int] = {}
        for arg, shape in zip(self.args, shapes, strict=False):
            if len(shape) == len(arg.shape):
                pairs = zip(arg.shape, shape, strict=True)
                known = ((str(extent), size) for extent, size in pairs)
                sizes |= {name: size for name, size in known if name in self.symbols and name not in sizes}
        return sizes

    @property
    def inputs(self) -> tuple[ArgSpec, ...]:
        return tuple(arg for arg in self.args if not arg.is_output)

    @property
    def outputs(self) -> tuple[ArgSpec, ...]:
        return tuple(arg for arg in self.args if arg.is_output)


def _number(extent: Any, sizes: Mapping[str, int]) -> int:
    """An extent, or its value where it is symbolic; a process that only runs code lacks the class of symbols."""
    number: int = extent if isinstance(extent, int) else extent.value(sizes)
    return number


def entry_symbol(name: str) -> str:
    """The C symbol of the function `name` of a library of the TVM FFI."""
    return f"__tvm_ffi_{name}"


def kernel_row(kernel: KernelArtifact) -> dict[str, Any]:
    """The description of a kernel without its object code."""
    return {
        "name": kernel.name,
        "target": kernel.target,
        "workspace_bytes": dim_to_json(kernel.workspace_bytes),
        "args": [{**asdict(arg), "shape": list(map(dim_to_json, arg.shape))} for arg in kernel.args],
        "calls": [_call_row(call) for call in kernel.calls],
        **({"symbols": kernel.symbols} if kernel.symbols else {}),
        **({"work": kernel.work} if any(kernel.work) else {}),
        **({} if kernel.device is None else {"device": asdict(kernel.device)}),
    }


def _call_row(call: ExternCall) -> dict[str, Any]:
    args = [asdict(arg) if isinstance(arg, ExternBuffer) else arg for arg in call.args]
    return {"symbol": call.symbol, "function": call.function, "args": args}


def _call_of(row: JsonObject) -> ExternCall:
    args = tuple(
        ExternBuffer(tuple(int(extent) for extent in arg["shape"]), str(arg["dtype"]), bool(arg["writable"]))
        if isinstance(arg, dict)
        else arg
        for arg in row["args"]
    )
    return ExternCall(row["symbol"], row["function"], args)


def kernel_of(row: JsonObject, object_code: bytes) -> KernelArtifact:
    """The kernel of a row. Raises: KeyError, TypeError or ValueError for an invalid row."""
    args = tuple(
        ArgSpec(
            name=arg["name"],
            shape=tuple(map(dim_from_json, arg["shape"])),
            dtype=number_type(arg["dtype"]),
            is_output=bool(arg["is_output"]),
            packing=None if arg["packing"] is None else _packing_of(arg["packing"]),
        )
        for arg in row["args"]
    )
    calls = tuple(_call_of(call) for call in row.get("calls", ()))
    device = _device_of(row["device"]) if "device" in row else None
    symbols = tuple(map(string, row.get("symbols", ())))
    alone, shared = map(integer, row.get("work", (0, 0)))
    facts = dim_from_json(row["workspace_bytes"]), row["target"], calls, device, symbols
    return KernelArtifact(row["name"], object_code, args, *facts, work=(alone, shared))


def _device_of(row: JsonObject) -> DeviceCode:
    launches = []
    for launch in row["launches"]:
        grid, block = ((int(x), int(y), int(z)) for x, y, z in (launch["grid"], launch["block"]))
        # `shared` and `ptx` are newer: older files lack them.
        registers, spilled, shared = int(launch["registers"]), int(launch["spilled"]), int(launch.get("shared", 0))
        launches.append(KernelLaunch(launch["name"], grid, block, registers, spilled, shared))
    starts = tuple(int(start) for start in row["workspace"])
    return DeviceCode(str(row["kind"]), tuple(launches), starts, str(row.get("ptx", "")))


def _packing_of(row: JsonObject) -> Packing:
    # `extents` is newer: older files lack it.
    dims, order, extents = (tuple(map(int, numbers)) for numbers in (row["dims"], row["order"], row.get("extents", ())))
    return Packing(dims, order, extents)
