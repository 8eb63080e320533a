"""Loads kernel artifacts and runs them on buffers.

Code stays loaded as long as any kernel or bound call of it lives; buffers are checked when they are bound, so a call
itself is one C call. The kernels of a network are one library inside an LLVM linker (`LLJIT`), which takes 0.2 ms a
kernel: an object that is damaged or lacks a symbol raises, where MCJIT would end the process.
"""

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import llvmlite.binding as llvm

from retune.compiler.errors import ArtifactError
from retune.compiler.runtime.arguments import Buffer as Buffer
from retune.compiler.runtime.arguments import address_of, check_count, check_overlap, check_threads
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.callback import CallErrors, make_callback
from retune.compiler.runtime.openmp import openmp_runtime

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
_SERIAL = itertools.count()
# 64 x 10 KB are held at most, at 3 ms / 64 = 0.05 ms a library.
_LIBRARIES_PER_LINKER = 64
"""A linker of LLVM keeps 10 KB of each library that it has ever linked; it takes 3 ms to make another one."""
_MATH, _HELPERS = "libm.so.6", "libgcc_s.so.1"
_NATIVE: list[Any] = []
"""Keeps what `native_address` loaded."""
_PARALLEL = b"GOMP_parallel"
_ELF = b"\x7fELF"
_MACHINE = slice(18, 20)
"""Where the header of an object file names its kind of CPU."""


class BoundKernel:
    """A kernel with its buffers and thread count: call it without arguments. The interpreter lock is free meanwhile,
    but for the functions that it calls.
    """

    __slots__ = ("_array", "_function", "_keep", "_kernel", "_pointers", "_threads")

    def __init__(self, kernel: "Kernel", pointers: Any, threads: int, keep: Sequence[object]) -> None:
        self._kernel = kernel
        # ctypes objects are made once: converting arguments would cost more than a small kernel takes.
        self._function = kernel.function
        self._array = pointers
        self._pointers = ctypes.c_void_p(ctypes.addressof(pointers))
        self._threads = ctypes.c_int32(threads)
        self._keep = list(keep)

    def __call__(self) -> None:
        """Run the kernel once.

        Raises: ArtifactError when the kernel returns another code than 0; what a function that it calls raised.
        """
        if code := self._function(self._pointers, self._threads):
            self.failed(code)

    @property
    def threads(self) -> int:
        """On how many threads it runs."""
        return int(self._threads.value)

    @property
    def is_parallel(self) -> bool:
        """Whether its code has parallel loops."""
        code = self._kernel.artifact.object_code
        return not code or _PARALLEL in code  # of a shared library the code is not known

    @property
    def calls_back(self) -> bool:
        """Whether it calls a Python function, which may start threads of its own."""
        return bool(self._kernel.artifact.calls)

    @property
    def row(self) -> tuple[int, int, int]:
        """Address of the kernel, address of the addresses of its buffers, number of threads."""
        address = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        return address, ctypes.addressof(self._array), self._threads.value

    def failed(self, code: int) -> NoReturn:
        """Raise what a code other than 0 stands for."""
        self._kernel.errors.reraise()
        raise ArtifactError(f"kernel {self._kernel.artifact.name} failed with code {code}")

    def rebind(self, place: int, buffer: Buffer) -> None:
        """Give coming calls another array for argument number `place`; the caller sees to it that it shares no memory
        with an argument that is written.

        Raises: ArtifactError when it does not fit.
        """
        artifact = self._kernel.artifact
        self._array[place] = address_of(artifact.name, artifact.args[place], buffer)
        self._keep[place] = buffer

    def move(self, place: int, address: int) -> None:
        """Give coming calls the memory at an address for argument number `place`; the caller sees to it that it is a
        multiple of 64, large enough, shared with no argument that is written, and stays.
        """
        self._array[place] = address

    def rotating(self, places: Mapping[int, Sequence[int]]) -> "RotatingKernel":
        """The same kernel, but buffer number `place` is another one with every call: the addresses given for it, in
        turn. The caller keeps that memory alive; addresses are multiples of 64.
        """
        return RotatingKernel(self, self._array, places)


class RotatingKernel:
    """A bound kernel some buffers of which change from call to call."""

    __slots__ = ("_kernel", "_places", "_pointers", "_usual")

    def __init__(self, kernel: BoundKernel, pointers: Any, places: Mapping[int, Sequence[int]]) -> None:
        self._kernel = kernel
        self._pointers = pointers
        self._places = [(place, itertools.cycle(addresses).__next__) for place, addresses in places.items()]
        self._usual = {place: pointers[place] for place in places}

    def __call__(self) -> None:
        """Run the kernel once, on the next buffers. Raises: ArtifactError as the kernel does."""
        for place, following in self._places:
            self._pointers[place] = following()
        self._kernel()

    def restore(self) -> None:
        """Give the bound kernel its own buffers back."""
        for place, address in self._usual.items():
            self._pointers[place] = address


class Kernel:
    """One loaded kernel."""

    __slots__ = ("_callbacks", "_library", "artifact", "errors", "function")

    def __init__(self, artifact: KernelArtifact, library: Mapping[str, int] | None = None) -> None:
        """`library` has the address of the kernel by its name, when its code is in this process already."""
        self.artifact = artifact
        self.errors = CallErrors()
        self._callbacks = [make_callback(artifact.name, call, self.errors) for call in artifact.calls]
        callbacks = {call.symbol: call.address for call in self._callbacks}
        self._library = _link(artifact, callbacks) if library is None else library
        self.function = _ENTRY(self._library[artifact.name])

    def __reduce__(self) -> NoReturn:
        raise ArtifactError(f"kernel {self.artifact.name} is loaded code, which cannot be copied or pickled")

    def bind(self, buffers: Sequence[Buffer], threads: int) -> BoundKernel:
        """Fix the arguments of coming calls: one buffer per argument, then optionally the workspace.

        Arrays must be contiguous, 64-byte aligned, and of the argument's dtype and number of elements (packed arguments
        take the packed elements); those that are written must be writable and share no memory with others. Without a
        workspace one is allocated here.

        Raises: ArtifactError when a buffer does not fit, or there is no memory for the workspace.
        """
        name, specs = self.artifact.name, self.artifact.args
        check_count(name, specs, len(buffers), workspace=True)
        threads = check_threads(name, threads)
        addresses = [address_of(name, spec, buffer) for spec, buffer in zip(specs, buffers, strict=False)]
        check_overlap(name, specs, addresses)
        workspace: Buffer = buffers[-1] if len(buffers) > len(specs) else self._workspace()
        addresses.append(workspace if isinstance(workspace, int) else workspace.ctypes.data)
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        return BoundKernel(self, pointers, threads, (*buffers[: len(specs)], workspace))

    def _workspace(self) -> Buffer:
        size = self.artifact.workspace_bytes
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

    Raises: ArtifactError when two share a name, when object code is damaged, made for another machine, or lacks its
    function or one that it calls (the linker then names the missing symbol on stderr), or when a function that a
    kernel calls is not registered in this process.
    """
    names = [artifact.name for artifact in artifacts]
    for name in names:
        if names.count(name) > 1:
            raise ArtifactError(f"two kernels are called {name}")
    together = _link_together([artifact for artifact in artifacts if not artifact.calls])
    return LoadedKernels({each.name: Kernel(each, None if each.calls else together) for each in artifacts})


def load_entry(artifact: KernelArtifact, entry: bytes, symbol: str) -> tuple[int, object]:
    """The address of an entry that was made for a kernel, such as `retune.compiler.codegen.ffi_entry` makes, and what
    must stay alive as long as it may be called. Functions that the kernel calls are part of the entry.

    Raises: ArtifactError when the code is damaged, for another machine, or a symbol is missing.
    """
    library = _link(artifact, {}, (entry,), symbol)
    return library[symbol], library


def native_address(text: str, name: str) -> int:
    """The address of a function given as LLVM text, which stays loaded. It may call OpenMP and what this process has
    loaded.
    """
    builder = llvm.JITLibraryBuilder().add_ir(text).export_symbol(name)
    for symbol, address in openmp_runtime().symbols.items():
        builder.import_symbol(symbol, address)
    library = _linked(builder.add_current_process(), name)
    _NATIVE.append(library)
    found: int = library[name]
    return found


def load_library(path: Path, artifacts: Sequence[KernelArtifact], metadata: Mapping[str, Any]) -> LoadedKernels:
    """Make the kernels in a shared library callable in this process; `artifacts` describe them.

    Raises: ArtifactError when the library is for another kind of CPU, cannot be loaded, or lacks a kernel.
    """
    theirs, ours = _machine(path), _machine(Path("/proc/self/exe"))
    # dlopen would say only that the format is wrong.
    if theirs and ours and theirs != ours:
        raise ArtifactError(f"{path} is code for another kind of CPU: {metadata.get('triple', 'unknown')}")
    openmp_runtime()  # its functions, and those of the other two, are found by name
    ctypes.CDLL(_MATH, mode=ctypes.RTLD_GLOBAL)
    with suppress(OSError):  # few CPUs need it
        ctypes.CDLL(_HELPERS, mode=ctypes.RTLD_GLOBAL)
    try:
        library = ctypes.CDLL(str(path))
        addresses = {each.name: ctypes.cast(library[each.name], ctypes.c_void_p).value or 0 for each in artifacts}
    except (OSError, AttributeError) as error:
        raise ArtifactError(f"{path} cannot be loaded: {error}") from error
    return LoadedKernels({each.name: Kernel(each, addresses) for each in artifacts})


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """What this machine's CPU can do, in LLVM's names, such as `avx512f`."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def _link(artifact: KernelArtifact, callbacks: Mapping[str, int], more: Sequence[bytes] = (), symbol: str = "") -> Any:
    """The kernel, with `more` objects, as a library that exports the `symbol`, by default the kernel's own."""
    if artifact.device is not None:
        raise ArtifactError(
            f"kernel {artifact.name} is code for {artifact.target}, not for a CPU; a network with it is run by "
            "retune.compiler.executor.executors.executor_of"
        )
    code, ours = artifact.object_code, _machine(Path("/proc/self/exe"))
    if code.startswith(_ELF) and ours and code[_MACHINE] != ours:  # linked it would be, and then run
        raise ArtifactError(f"kernel {artifact.name} (target {artifact.target}) is code for another kind of CPU")
    builder = llvm.JITLibraryBuilder().add_object_img(artifact.object_code).export_symbol(symbol or artifact.name)
    for entry in more:
        builder.add_object_img(entry)
    # By address: names of the process could resolve to another OpenMP runtime.
    for name, address in (*openmp_runtime().symbols.items(), *callbacks.items()):
        builder.import_symbol(name, address)
    try:
        return _linked(builder.add_current_process(), artifact.name)
    except RuntimeError as error:
        raise ArtifactError(f"kernel {artifact.name} (target {artifact.target}) cannot be loaded: {error}") from error


def _link_together(artifacts: Sequence[KernelArtifact]) -> Any:
    """Kernels as one library, which takes a third of the time of one each; None when they do not link. Each is linked
    alone then, and the error names the one at fault.
    """
    ours = _machine(Path("/proc/self/exe"))
    codes = [artifact.object_code for artifact in artifacts]
    foreign = any(ours and code.startswith(_ELF) and code[_MACHINE] != ours for code in codes)
    if len(artifacts) < 2 or foreign or any(artifact.device is not None for artifact in artifacts):
        return None
    builder = llvm.JITLibraryBuilder()
    for artifact in artifacts:
        builder.add_object_img(artifact.object_code).export_symbol(artifact.name)
    for name, address in openmp_runtime().symbols.items():
        builder.import_symbol(name, address)
    try:
        return _linked(builder.add_current_process(), artifacts[0].name)
    except RuntimeError:
        return None


@lru_cache(maxsize=8)
def _machine(program: Path) -> bytes:
    """The kind of CPU that a program in ELF is for, as it stands in its header; empty for other programs."""
    try:
        with program.open("rb") as file:
            header = file.read(_MACHINE.stop)
    except OSError:
        return b""
    return header[_MACHINE] if header.startswith(_ELF) else b""


def _linked(builder: llvm.JITLibraryBuilder, name: str) -> Any:
    """The library. Raises: RuntimeError when it cannot be linked."""
    # Names of libraries must differ within a linker, and those of kernels repeat: each candidate has the same.
    number = next(_SERIAL)
    linker = _linker(number // _LIBRARIES_PER_LINKER)
    library = builder.link(linker, f"{name}.{number}")
    # llvmlite frees a linker with its last reference, and with it the code that it linked.
    library.linker = linker
    return library


@lru_cache(maxsize=1)
def _linker(number: int) -> Any:
    """A linker, which lives as long as the libraries that it linked; math functions are made visible to it, and those
    that convert float16 on CPUs without instructions for it.
    """
    del number
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.load_library_permanently(_MATH)
    with suppress(RuntimeError):  # few CPUs need it
        llvm.load_library_permanently(_HELPERS)
    # The older linker of LLVM maps code and constants one by one, and aborts the process when a full address space puts
    # them more than 2 GB apart.
    return llvm.create_lljit_compiler(use_jit_link=True)
