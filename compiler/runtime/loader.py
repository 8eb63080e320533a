"""In: kernel artifacts. Out: functions that run them on buffers.

Always: code stays loaded as long as any kernel or bound call of it lives; buffers are checked when they are bound, so a
call itself is one C call. Every kernel is a library of its own inside one LLVM linker (`LLJIT`): an object that is not
loadable or lacks a symbol raises, where MCJIT would end the process, and loading costs a quarter of a millisecond.
"""

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from compiler.errors import ArtifactError
from compiler.runtime.arguments import Buffer as Buffer
from compiler.runtime.arguments import address_of, check_count, check_overlap, check_threads
from compiler.runtime.artifact import KernelArtifact
from compiler.runtime.buffers import aligned_array
from compiler.runtime.callback import CallErrors, make_callback
from compiler.runtime.openmp import openmp_runtime

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
_SERIAL = itertools.count()
_ELF = b"\x7fELF"
_MACHINE = slice(18, 20)
"""Where the header of an object file names its kind of processor."""


class BoundKernel:
    """A kernel with its buffers and thread count: call it without arguments. The interpreter lock is free meanwhile,
    but for the functions that it calls.
    """

    __slots__ = ("_errors", "_function", "_keep", "_name", "_pointers", "_threads")

    def __init__(self, kernel: "Kernel", pointers: Any, threads: int, keep: tuple[object, ...]) -> None:
        self._name = kernel.artifact.name
        self._errors = kernel.errors
        self._function = kernel.function
        self._pointers = ctypes.c_void_p(ctypes.addressof(pointers))
        self._threads = ctypes.c_int32(threads)
        self._keep = (pointers, *keep)

    def __call__(self) -> None:
        """Run the kernel once.

        Raises: ArtifactError when the kernel returns another code than 0; what a function that it calls raised.
        """
        if code := self._function(self._pointers, self._threads):
            self._errors.reraise()
            raise ArtifactError(f"kernel {self._name} failed with code {code}")

    def rotating(self, places: Mapping[int, Sequence[int]]) -> "RotatingKernel":
        """The same kernel, but buffer number `place` is another one with every call: the addresses given for it, in
        turn. The caller keeps that memory alive; addresses are multiples of 64.
        """
        return RotatingKernel(self, self._keep[0], places)


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

    def __init__(self, artifact: KernelArtifact) -> None:
        self.artifact = artifact
        self.errors = CallErrors()
        self._callbacks = [make_callback(artifact.name, call, self.errors) for call in artifact.calls]
        self._library = _link(artifact, {call.symbol: call.address for call in self._callbacks})
        self.function = _ENTRY(self._library[artifact.name])

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
        return BoundKernel(self, pointers, threads, (self, workspace, *buffers))

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
    kernels: dict[str, Kernel] = {}
    for artifact in artifacts:
        if artifact.name in kernels:
            raise ArtifactError(f"two kernels are called {artifact.name}")
        kernels[artifact.name] = Kernel(artifact)
    return LoadedKernels(kernels)


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """What this machine's processor can do, in LLVM's names, such as `avx512f`."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def _link(artifact: KernelArtifact, callbacks: Mapping[str, int]) -> Any:
    code, ours = artifact.object_code, _machine(Path("/proc/self/exe"))
    if code.startswith(_ELF) and ours and code[_MACHINE] != ours:  # linked it would be, and then run
        raise ArtifactError(f"kernel {artifact.name} (target {artifact.target}) is code for another kind of processor")
    builder = llvm.JITLibraryBuilder().add_object_img(artifact.object_code).export_symbol(artifact.name)
    for name, address in (*openmp_runtime().symbols.items(), *callbacks.items()):
        builder.import_symbol(name, address)
    try:
        return builder.add_current_process().link(_linker(), f"{artifact.name}.{next(_SERIAL)}")
    except RuntimeError as error:
        raise ArtifactError(f"kernel {artifact.name} (target {artifact.target}) cannot be loaded: {error}") from error


@lru_cache(maxsize=1)
def _machine(program: Path) -> bytes:
    """The kind of processor that a program in ELF is for, as it stands in its header; empty for other programs."""
    try:
        with program.open("rb") as file:
            header = file.read(_MACHINE.stop)
    except OSError:
        return b""
    return header[_MACHINE] if header.startswith(_ELF) else b""


@lru_cache(maxsize=1)
def _linker() -> Any:
    """The process's linker; math functions are made visible to it, and those that convert float16 on processors without
    instructions for it.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.load_library_permanently("libm.so.6")
    with suppress(RuntimeError):  # few processors need it
        llvm.load_library_permanently("libgcc_s.so.1")
    return llvm.create_lljit_compiler()
