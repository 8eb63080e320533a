"""Entry points of kernels in the calling convention of the TVM FFI.

The entry validates all arguments in machine code: their number, kind, device, type, shape, strides and aliasing. A
mismatch becomes an FFI error of one sentence. Arguments that kernels cannot use where they lie, because they do not
start at a multiple of 64 bytes, are copied for the call. The entry is a separate object, so a kernel that is loaded
without it does not need the FFI.

    int32_t __tvm_ffi_NAME(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result)

It takes one tensor per argument of the kernel (`Tensor` or `DLTensor*`) and, optionally, a number of threads; without
one it uses as many as OpenMP would. Functions that the kernel calls are looked up by name in the FFI's registry, at
every call.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import combinations

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import FLAG, LONG, NULL, POINTER, CFunction, array_of
from retune.compiler.codegen.abi.ffi_calls import write_calls
from retune.compiler.codegen.abi.ffi_support import FfiModule, dlpack_type
from retune.compiler.codegen.cpu import compile_module
from retune.compiler.core.target import Target
from retune.compiler.runtime.arguments import MOST_THREADS
from retune.compiler.runtime.artifact import ALIGNMENT, ArgSpec, KernelArtifact, entry_symbol


def entry_code(artifact: KernelArtifact, name: str, target: Target, order: Sequence[int] | None = None) -> bytes:
    """The object code of `artifact`'s entry, to be linked with its kernel; the FFI knows the function as `name`.

    `order` has the kernel's arguments, by number, as the function takes them; by default they are in the same order.
    Raises: TargetError when there is no code generation for the target; LoweringError for a type that DLPack lacks.
    """
    return compile_module(entry_text(artifact, name, order), target)


def entry_text(artifact: KernelArtifact, name: str, order: Sequence[int] | None = None) -> str:
    order = range(len(artifact.args)) if order is None else order
    assert sorted(order) == list(range(len(artifact.args))), "every argument has its place"
    module = FfiModule()
    write_calls(module, name, artifact.calls)
    _Entry(module, artifact, name).write(order)
    return str(module)


class _Entry:
    """Writes the entry of a kernel: an early return, -1, follows every error."""

    def __init__(self, module: FfiModule, artifact: KernelArtifact, name: str) -> None:
        self._module, self._artifact, self._name = module, artifact, name
        self._entry: CFunction = module.define(entry_symbol(name), "i32", "ptr, ptr, i32, ptr", "")

    def write(self, order: Sequence[int]) -> None:
        """Write the function, which takes the kernel's arguments in `order`."""
        module, artifact, entry = self._module, self._artifact, self._entry
        _, values, count, _ = entry.args
        arguments = entry.slot(POINTER, len(artifact.args) + 1)
        takes = module.text(_takes([artifact.args[number] for number in order], self._name))
        where = module.text(f"kernel {self._name}")
        threads = entry.call(module.threads, where, takes, values, count, len(order), MOST_THREADS)
        with entry.when(entry.equals(threads, 0)):
            entry.ret(-1)
        tensors = {number: self._tensor(entry.at(values, 16 * index), number) for index, number in enumerate(order)}
        self._refuse_shared(tensors)
        copies = []
        for number, spec in enumerate(artifact.args):
            used = entry.call(module.aligned, tensors[number], spec.nbytes, _room(spec.nbytes))
            entry.store(used, arguments, 8 * number)
            copies.append((tensors[number], used, spec))
        room = _room(artifact.workspace_bytes) if artifact.workspace_bytes else 0
        what = f"its workspace of {room} bytes" if room else "copies of arguments that are not aligned"
        self._require([used for _, used, _ in copies], copies, what)
        workspace = entry.call(module.allocate, ALIGNMENT, room) if room else NULL
        if room:
            self._require([workspace], copies, what)
        entry.store(workspace, arguments, 8 * len(copies))
        kernel = module.declare(artifact.name, "i32", "ptr, i32", "hidden")
        code = entry.call(kernel, arguments, threads)
        entry.call(module.free, workspace)
        for data, used, spec in copies:
            entry.call(module.restore, data, used, spec.nbytes, int(spec.is_output))
        entry.ret(entry.builder.select(entry.equals(code, 0), code, code.type(-1)))

    def _tensor(self, value: ir.Value, number: int) -> ir.Value:
        """Where the memory of argument `number` lies, which is the FFI's `value`."""
        module, entry, spec = self._module, self._entry, self._artifact.args[number]
        shape = spec.buffer_shape
        form = "" if spec.packing is None else f", the packed form of {list(spec.shape)}"
        where = module.text(f"kernel {self._name}, argument {spec.name}")
        what = module.text(f"{spec.dtype}{list(shape)}{form}")
        extents = module.constant(array_of(LONG, shape))
        data = entry.call(module.data, value, where, what, extents, len(shape), dlpack_type(spec.dtype))
        with entry.when(entry.is_null(data)):
            entry.ret(-1)
        return data

    def _refuse_shared(self, tensors: dict[int, ir.Value]) -> None:
        """Refuse arguments that share memory if one of them is written: `noalias` would be wrong."""
        entry, builder, args = self._entry, self._entry.builder, self._artifact.args
        for first, second in combinations(range(len(args)), 2):
            if not args[first].is_output and not args[second].is_output:
                continue
            # Two ranges overlap exactly if each begins before the other ends.
            ends = [entry.at(tensors[number], args[number].nbytes) for number in (first, second)]
            begins_first = builder.icmp_unsigned("<", tensors[first], ends[1])
            with entry.when(builder.and_(begins_first, builder.icmp_unsigned("<", tensors[second], ends[0]))):
                names = f"{args[first].name} and {args[second].name}"
                text = f"kernel {self._name}: the arguments {names} share memory, and one of them is written"
                self._module.raise_error(entry, "ValueError", text)
                entry.ret(-1)

    def _require(
        self, pointers: Sequence[ir.Value], copies: Sequence[tuple[ir.Value, ir.Value, ArgSpec]], what: str
    ) -> None:
        """End with an error where one of `pointers` is null: there is no memory for `what`."""
        entry, module = self._entry, self._module
        with entry.when(reduce(entry.builder.or_, map(entry.is_null, pointers), FLAG(0))):
            for data, used, spec in copies:
                entry.call(module.restore, data, used, spec.nbytes, 0)
            module.raise_error(entry, "MemoryError", f"kernel {self._name}: no memory for {what}")
            entry.ret(-1)


def _room(nbytes: int) -> int:
    """The bytes to ask for when memory of a size is allocated: a multiple of the alignment, and some."""
    # C11's aligned_alloc asks for a size that is a multiple of the alignment.
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


def _takes(args: Sequence[ArgSpec], name: str) -> str:
    """What is said when another number of arguments is given; the number given comes at the end."""
    names = ", ".join(f"{spec.name}{' (written)' if spec.is_output else ''}" for spec in args)
    escaped = f"kernel {name} takes {len(args)} tensors ({names}) and then, if wanted, a number of threads"
    # The text is a format of snprintf.
    return escaped.replace("%", "%%") + "; %d arguments are given"
