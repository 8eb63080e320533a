"""Loads kernel artifacts and runs them on buffers.

Code stays loaded while any kernel or bound call of it lives; buffers are checked when bound, so a call itself is one C
call. The kernels of a network are one library inside an LLVM linker (`LLJIT`), which takes 0.2 ms per kernel: a damaged
object or a missing symbol raises, where MCJIT would end the process.
"""

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import llvmlite.binding as llvm

from retune.compiler.core.errors import ArtifactError, RowLengthError
from retune.compiler.runtime.arguments import Buffer as Buffer
from retune.compiler.runtime.arguments import address_of, check_count, check_overlap, check_threads
from retune.compiler.runtime.artifact import TOO_LONG, KernelArtifact
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.ffi.callback import CallErrors, make_callback
from retune.compiler.runtime.threads.openmp import openmp_runtime

_SERIAL = itertools.count()
# 64 x 10 KB at most, at 3 ms / 64 = 0.05 ms per library.
_LIBRARIES_PER_LINKER = 64
"""An LLVM linker keeps 10 KB of each library that it ever linked; creating a linker takes 3 ms."""
_MATH, _HELPERS = "libm.so.6", "libgcc_s.so.1"
_NATIVE: list[object] = []
"""Keeps libraries of `native_address` alive."""
_PARALLEL = b"GOMP_parallel"
ELF = b"\x7fELF"
MOST_SYMBOLS = 8
"""The most sizes of a kernel that runs in a sequence."""
_MACHINE = slice(18, 20)
"""Bytes of an object file's header with its machine (instruction set)."""


@lru_cache
def _entry(symbols: int) -> "type[ctypes._CFunctionType]":
    """The type of a kernel's entry, which takes as many sizes as the kernel has symbols."""
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, *(ctypes.c_int64,) * symbols)


class BoundKernel:
    """A kernel with its buffers and thread count: call it without arguments. The interpreter lock is released during
    the call, except in callbacks.
    """

    __slots__ = ("_array", "_function", "_keep", "_kernel", "_pointers", "_sizes", "_threads")

    def __init__(
        self,
        kernel: "Kernel",
        pointers: "ctypes.Array[ctypes.c_void_p]",
        threads: int,
        keep: Sequence[object],
        sizes: "ctypes.Array[ctypes.c_int64]",
    ) -> None:
        self._kernel = kernel
        self._sizes = sizes
        # ctypes objects are made once: converting arguments would cost more than a small kernel takes.
        self._function = kernel.function
        self._array = pointers
        self._pointers = ctypes.c_void_p(ctypes.addressof(pointers))
        self._threads = ctypes.c_int32(threads)
        self._keep = list(keep)

    def __call__(self) -> None:
        """Run the kernel once.

        Raises: ArtifactError when the kernel returns another code than 0; exceptions of functions that it calls.
        """
        if code := self._function(self._pointers, self._threads, *self._sizes):
            self.fail(code)

    @property
    def threads(self) -> int:
        return int(self._threads.value)

    @property
    def work(self) -> tuple[int, int]:
        """As `KernelArtifact.work`."""
        return self._kernel.artifact.work

    def run_alone(self) -> None:
        """Use a single thread in coming calls; a `row` that was read before keeps its number."""
        self._threads.value = 1

    @property
    def is_parallel(self) -> bool:
        code = self._kernel.artifact.object_code
        return not code or _PARALLEL in code  # a shared library's code is unknown

    @property
    def calls_back(self) -> bool:
        """Whether it calls a Python function, which may start threads."""
        return bool(self._kernel.artifact.calls)

    @property
    def row(self) -> tuple[int, int, int, int, int]:
        """Address of the kernel, address of its buffers' addresses, number of threads, number of sizes, their address.

        Raises: ArtifactError for a kernel with more than `MOST_SYMBOLS` sizes.
        """
        if len(self._sizes) > MOST_SYMBOLS:
            raise ArtifactError(f"kernel {self._kernel.artifact.name} takes more than {MOST_SYMBOLS} sizes")
        address = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        sizes = ctypes.addressof(self._sizes)
        return address, ctypes.addressof(self._array), self._threads.value, len(self._sizes), sizes

    def fail(self, code: int) -> NoReturn:
        self._kernel.errors.reraise()
        artifact = self._kernel.artifact
        if artifact.symbols and code == TOO_LONG:
            sizes = dict(zip(artifact.symbols, self._sizes, strict=True))
            raise RowLengthError(
                f"kernel {artifact.name}: no stack holds its rows for the sizes {sizes}; compile it for this shape"
            )
        raise ArtifactError(f"kernel {artifact.name} failed with code {code}")

    def rebind(self, index: int, buffer: Buffer) -> None:
        """Replace argument `index` of coming calls; the caller ensures that it shares no memory with a written
        argument.

        Raises: ArtifactError when it does not fit.
        """
        artifact = self._kernel.artifact
        self._array[index] = address_of(artifact.name, artifact.args[index], buffer)
        self._keep[index] = buffer

    def move(self, index: int, address: int) -> None:
        """Replace the address of argument `index` of coming calls; the caller ensures that it is a multiple of 64,
        large enough, stays valid and shares no memory with a written argument.
        """
        self._array[index] = address

    def rotating(self, addresses: Mapping[int, Sequence[int]]) -> "RotatingKernel":
        """The same kernel, whose buffers in `addresses` (by argument index) change with every call, in turn. The caller
        keeps that memory alive; addresses are multiples of 64.
        """
        return RotatingKernel(self, self._array, addresses)


class RotatingKernel:
    """A bound kernel, some of whose buffers change from call to call."""

    __slots__ = ("_cycles", "_kernel", "_pointers", "_usual")

    def __init__(
        self, kernel: BoundKernel, pointers: "ctypes.Array[ctypes.c_void_p]", addresses: Mapping[int, Sequence[int]]
    ) -> None:
        self._kernel = kernel
        self._pointers = pointers
        self._cycles = [(index, itertools.cycle(cycle).__next__) for index, cycle in addresses.items()]
        self._usual = {index: pointers[index] for index in addresses}

    def __call__(self) -> None:
        """Run the kernel once, on the next buffers. Raises: ArtifactError like the kernel."""
        for index, following in self._cycles:
            self._pointers[index] = following()
        self._kernel()

    def restore(self) -> None:
        for index, address in self._usual.items():
            self._pointers[index] = address


class Kernel:
    __slots__ = ("_callbacks", "_library", "artifact", "errors", "function")

    def __init__(self, artifact: KernelArtifact, library: Mapping[str, int] | None = None) -> None:
        """`library` has the address of the kernel by its name if its code is already in this process."""
        self.artifact = artifact
        self.errors = CallErrors()
        self._callbacks = [make_callback(artifact.name, call, self.errors) for call in artifact.calls]
        callbacks = {call.symbol: call.address for call in self._callbacks}
        self._library = _link(artifact, callbacks) if library is None else library
        self.function = _entry(len(artifact.symbols))(self._library[artifact.name])

    def __reduce__(self) -> NoReturn:
        raise ArtifactError(f"kernel {self.artifact.name} is loaded code, which cannot be copied or pickled")

    def bind(self, buffers: Sequence[Buffer], threads: int, sizes: Mapping[str, int] | None = None) -> BoundKernel:
        """Fix the arguments of coming calls: one buffer per argument, then optionally the workspace; `sizes` are the
        values of the kernel's symbols, by default those that it is `at`.

        Arrays must be contiguous, 64-byte aligned, and of the argument's dtype and number of elements (packed arguments
        take the packed elements); written arrays must be writable and share no memory with others. Without a workspace
        it is allocated here.

        Raises: ArtifactError when a buffer does not fit, or there is no memory for the workspace.
        """
        sizes = sizes or dict(zip(self.artifact.symbols, self.artifact.sizes, strict=False))
        artifact = self.artifact.at(sizes)
        name, specs = artifact.name, artifact.args
        check_count(name, specs, len(buffers), workspace=True)
        threads = check_threads(name, threads)
        addresses = [address_of(name, spec, buffer) for spec, buffer in zip(specs, buffers, strict=False)]
        check_overlap(name, specs, addresses)
        workspace: Buffer = buffers[-1] if len(buffers) > len(specs) else _workspace(artifact)
        addresses.append(workspace if isinstance(workspace, int) else workspace.ctypes.data)
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        symbols = self.artifact.symbols
        values = (ctypes.c_int64 * len(symbols))(*(sizes[symbol] for symbol in symbols))
        return BoundKernel(self, pointers, threads, (*buffers[: len(specs)], workspace), values)


def _workspace(artifact: KernelArtifact) -> Buffer:
    size = artifact.workspace_bytes
    return aligned_array((size,), "uint8") if size else 0


class LoadedKernels(Mapping[str, Kernel]):
    """Kernels by name, ready to be bound."""

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self._kernels = dict(kernels)

    def __getitem__(self, name: str) -> Kernel:
        return self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)


def load_kernels(artifacts: Sequence[KernelArtifact]) -> LoadedKernels:
    """Make the kernels of `artifacts` callable in this process.

    Raises: ArtifactError when two share a name, when object code is damaged, for another machine, or lacks its function
    or a called function (the linker names the symbol on stderr), or when a called function is not registered in this
    process.
    """
    names = [artifact.name for artifact in artifacts]
    for name in names:
        if names.count(name) > 1:
            raise ArtifactError(f"two kernels are called {name}")
    together = _link_together([artifact for artifact in artifacts if not artifact.calls])
    return LoadedKernels({each.name: Kernel(each, None if each.calls else together) for each in artifacts})


def load_entry(artifact: KernelArtifact, entry: bytes, symbol: str) -> tuple[int, object]:
    """The address of a kernel's entry, such as `retune.compiler.codegen.abi.ffi_entry` makes, and the objects that must
    stay alive while it is callable. The entry includes the functions that the kernel calls.

    Raises: ArtifactError when the code is damaged, for another machine, or a symbol is missing.
    """
    library = _link(artifact, {}, (entry,), symbol)
    return library[symbol], library


def native_address(text: str, name: str) -> int:
    """The address of a function in LLVM text, which stays loaded; it may call OpenMP and loaded code."""
    library = _build_library(llvm.JITLibraryBuilder().add_ir(text), [name])
    _NATIVE.append(library)
    entry: int = library[name]
    return entry


def load_library(path: Path, artifacts: Sequence[KernelArtifact], metadata: Mapping[str, object]) -> LoadedKernels:
    """Make the kernels of a shared library callable in this process; `artifacts` describe them.

    Raises: ArtifactError when the library is for another instruction set, cannot be loaded, or lacks a kernel.
    """
    machine, own_machine = _machine(path), _machine(Path("/proc/self/exe"))
    # dlopen would only report an invalid format.
    if machine and own_machine and machine != own_machine:
        raise ArtifactError(f"{path} is code for another kind of CPU: {metadata.get('triple', 'unknown')}")
    openmp_runtime()  # found by name, like the functions of the other two
    ctypes.CDLL(_MATH, mode=ctypes.RTLD_GLOBAL)
    with suppress(OSError):  # few CPUs need it
        ctypes.CDLL(_HELPERS, mode=ctypes.RTLD_GLOBAL)
    try:
        library = ctypes.CDLL(str(path))
        addresses = {
            artifact.name: ctypes.cast(library[artifact.name], ctypes.c_void_p).value or 0 for artifact in artifacts
        }
    except (OSError, AttributeError) as error:
        raise ArtifactError(f"{path} cannot be loaded: {error}") from error
    return LoadedKernels({artifact.name: Kernel(artifact, addresses) for artifact in artifacts})


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """The CPU's features in LLVM's names, such as `avx512f`."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def _link(
    artifact: KernelArtifact, callbacks: Mapping[str, int], more: Sequence[bytes] = (), symbol: str = ""
) -> Mapping[str, int]:
    """The kernel, with `more` objects, as a library that exports `symbol`, by default the kernel's own."""
    if artifact.device is not None:
        raise ArtifactError(
            f"kernel {artifact.name} is code for {artifact.target}, not for a CPU; a network with it is run by "
            "retune.compiler.runtime.executor.executors.executor_of"
        )
    if _is_foreign(artifact.object_code):  # otherwise it would be linked, and then run
        raise ArtifactError(f"kernel {artifact.name} (target {artifact.target}) is code for another kind of CPU")
    try:
        return _build_library(_objects([artifact.object_code, *more]), [symbol or artifact.name], callbacks)
    except RuntimeError as error:
        raise ArtifactError(f"kernel {artifact.name} (target {artifact.target}) cannot be loaded: {error}") from error


def _link_together(artifacts: Sequence[KernelArtifact]) -> Mapping[str, int] | None:
    """Kernels as one library, in a third of the time of several; None if they do not link. The caller then links
    each alone, and the error names the culprit.
    """
    codes = [artifact.object_code for artifact in artifacts]
    if len(artifacts) < 2 or any(map(_is_foreign, codes)) or any(artifact.device for artifact in artifacts):
        return None
    try:
        return _build_library(_objects(codes), [artifact.name for artifact in artifacts])
    except RuntimeError:
        return None


@lru_cache(maxsize=8)
def _machine(program: Path) -> bytes:
    """The machine field in the ELF header of a program; empty for other files."""
    try:
        with program.open("rb") as file:
            header = file.read(_MACHINE.stop)
    except OSError:
        return b""
    return header[_MACHINE] if header.startswith(ELF) else b""


def _is_foreign(code: bytes) -> bool:
    """Whether object code is for another instruction set than this process."""
    ours = _machine(Path("/proc/self/exe"))
    return bool(ours) and code.startswith(ELF) and code[_MACHINE] != ours


def _objects(codes: Sequence[bytes]) -> llvm.JITLibraryBuilder:
    builder = llvm.JITLibraryBuilder()
    for code in codes:
        builder.add_object_img(code)
    return builder


def _build_library(
    builder: llvm.JITLibraryBuilder, symbols: Sequence[str], callbacks: Mapping[str, int] | None = None
) -> Mapping[str, int]:
    """The library, which exports `symbols` and calls `callbacks`. Raises: RuntimeError when it cannot be linked."""
    for symbol in symbols:
        builder.export_symbol(symbol)
    # By address: names of the process could resolve to another OpenMP runtime.
    for name, address in {**openmp_runtime().symbols, **(callbacks or {})}.items():
        builder.import_symbol(name, address)
    # Names of libraries must differ within a linker, but kernels' names repeat among candidates.
    number = next(_SERIAL)
    linker = _linker(number // _LIBRARIES_PER_LINKER)
    library = builder.add_current_process().link(linker, f"{symbols[0]}.{number}")
    # llvmlite frees a linker with its last reference, and its code with it.
    library.linker = linker
    addresses: Mapping[str, int] = library
    return addresses


@lru_cache(maxsize=1)
def _linker(number: int) -> llvm.LLJIT:
    """A linker, which lives as long as its libraries; it sees math functions, and float16 conversions for CPUs without
    instructions for them.
    """
    del number
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.load_library_permanently(_MATH)
    with suppress(RuntimeError):  # few CPUs need it
        llvm.load_library_permanently(_HELPERS)
    # LLVM's older linker maps code and constants separately, and aborts the process when a full address space puts them
    # more than 2 GB apart.
    # Text of `native_address` is a few calls: at level 0 its compilation takes a third of the time.
    machine = llvm.Target.from_default_triple().create_target_machine(opt=0, jit=True)
    return llvm.create_lljit_compiler(machine, use_jit_link=True)
