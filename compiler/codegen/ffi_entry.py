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

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from retune.compiler.codegen.cpu import compile_module
from retune.compiler.codegen.ffi_support import SUPPORT, FfiType, constant_name, dlpack_type
from retune.compiler.runtime.arguments import MOST_THREADS
from retune.compiler.runtime.artifact import (
    ALIGNMENT,
    ArgSpec,
    ExternArgument,
    ExternBuffer,
    ExternCall,
    KernelArtifact,
    entry_symbol,
)
from retune.compiler.target import Target


def entry_code(artifact: KernelArtifact, name: str, target: Target, order: Sequence[int] | None = None) -> bytes:
    """The object code of `artifact`'s entry, to be linked with its kernel; the FFI knows the function as `name`.

    `order` has the kernel's arguments, by number, as the function takes them; by default they are in the same order.
    Raises: TargetError when there is no code generation for the target; LoweringError for a type that DLPack lacks.
    """
    return compile_module(entry_text(artifact, name, order), target)


def entry_text(artifact: KernelArtifact, name: str, order: Sequence[int] | None = None) -> str:
    """The entry as LLVM text."""
    order = range(len(artifact.args)) if order is None else order
    assert sorted(order) == list(range(len(artifact.args))), "every argument has its place"
    constants = _Constants()
    calls = [_call_glue(name, call, constants) for call in artifact.calls]
    entry = _entry(artifact, name, order, constants)
    kernel = f"declare hidden i32 @{artifact.name}(ptr, i32)"
    return "\n\n".join((SUPPORT, kernel, "\n".join(constants.lines), *calls, entry))


@dataclass(slots=True)
class _Constants:
    """Constants of the module, each a line; the same text is kept once."""

    lines: list[str]
    _texts: dict[str, str]

    def __init__(self) -> None:
        self.lines, self._texts = [], {}

    def text(self, text: str) -> str:
        """The name of a string that ends with a zero."""
        if text not in self._texts:
            data = text.encode()
            body = "".join(f"\\{byte:02X}" for byte in (*data, 0))
            self._texts[text] = self.add(f'[{len(data) + 1} x i8] c"{body}"')
        return self._texts[text]

    def numbers(self, numbers: Sequence[int]) -> str:
        """The name of an array of int64."""
        body = ", ".join(f"i64 {number}" for number in numbers)
        return self.add(f"[{len(numbers)} x i64] [{body}]" if numbers else "[1 x i64] zeroinitializer")

    def add(self, value: str) -> str:
        """The name of a constant of any type."""
        name = constant_name(len(self.lines))
        self.lines.append(f"{name} = private unnamed_addr constant {value}")
        return name


def _entry(artifact: KernelArtifact, name: str, order: Sequence[int], constants: _Constants) -> str:
    count = len(artifact.args)
    takes = _takes([artifact.args[number] for number in order], name)
    lines = [
        f"define i32 @{entry_symbol(name)}(ptr %self, ptr %args, i32 %count, ptr %result) {{",
        "entry:",
        f"  %buffers = alloca [{count + 1} x ptr], align 8",
        f"  %threads = call i32 @retune.threads(ptr {constants.text(f'kernel {name}')}, "
        f"ptr {constants.text(takes)}, ptr %args, i32 %count, i32 {count}, i32 {MOST_THREADS})",
        "  %counted = icmp sgt i32 %threads, 0",
        "  br i1 %counted, label %arg0, label %refused",
    ]
    for place, number in enumerate(order):
        following = f"arg{place + 1}" if place + 1 < count else "apart0"
        spec = _spec(name, artifact.args[number], constants)
        lines += [
            f"arg{place}:",
            f"  %any{place} = getelementptr i8, ptr %args, i64 {16 * place}",
            f"  %b{number} = call ptr @retune.data(ptr %any{place}, ptr {spec})",
            f"  %ok{place} = icmp ne ptr %b{number}, null",
            f"  br i1 %ok{place}, label %{following}, label %refused",
        ]
    lines += _apart(artifact.args, name, constants)
    lines += ["  %lacks.0 = add i1 false, false"]
    for place, argument in enumerate(artifact.args):
        size = argument.nbytes
        lines += [
            f"  %u{place} = call ptr @retune.aligned(ptr %b{place}, i64 {size}, i64 {_room(size)})",
            f"  %null{place} = icmp eq ptr %u{place}, null",
            f"  %lacks.{place + 1} = or i1 %lacks.{place}, %null{place}",
            f"  %slot{place} = getelementptr ptr, ptr %buffers, i64 {place}",
            f"  store ptr %u{place}, ptr %slot{place}, align 8",
        ]
    lines += [f"  br i1 %lacks.{count}, label %full, label %placed"]
    return "\n".join([*lines, *_run(artifact, name, constants), "refused:", "  ret i32 -1", "}"])


def _room(nbytes: int) -> int:
    """The bytes to ask for when memory of a size is allocated: a multiple of the alignment, and some."""
    # C11's aligned_alloc asks for a size that is a multiple of the alignment.
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


def _run(artifact: KernelArtifact, name: str, constants: _Constants) -> list[str]:
    """The lines that give the kernel its workspace, run it, and give back the copies of arguments."""
    room = _room(artifact.workspace_bytes) if artifact.workspace_bytes else 0
    what = f"its workspace of {room} bytes" if room else "copies of arguments that are not aligned"
    message = constants.text(f"kernel {name}: no memory for {what}")
    workspace = f"call ptr @aligned_alloc(i64 {ALIGNMENT}, i64 {room})" if room else "getelementptr i8, ptr null, i64 0"
    lines = ["placed:", f"  %workspace = {workspace}"]
    if room:
        lines += ["  %room = icmp ne ptr %workspace, null", "  br i1 %room, label %run, label %full"]
    else:
        lines += ["  br label %run"]
    lines += [
        "run:",
        f"  %last = getelementptr ptr, ptr %buffers, i64 {len(artifact.args)}",
        "  store ptr %workspace, ptr %last, align 8",
        f"  %code = call i32 @{artifact.name}(ptr %buffers, i32 %threads)",
        "  call void @free(ptr %workspace)",
        *_restore(artifact.args, written=True),
        "  %good = icmp eq i32 %code, 0",
        "  br i1 %good, label %done, label %refused",
        "done:",
        "  ret i32 0",
        "full:",
        *_restore(artifact.args, written=False),
        f"  call void @retune.raise(ptr @retune.memory_error, ptr {message})",
        "  ret i32 -1",
    ]
    return lines


def _restore(args: Sequence[ArgSpec], *, written: bool) -> list[str]:
    return [
        f"  call void @retune.restore(ptr %b{place}, ptr %u{place}, i64 {spec.nbytes}, "
        f"i1 {int(written and spec.is_output)})"
        for place, spec in enumerate(args)
    ]


def _takes(args: Sequence[ArgSpec], name: str) -> str:
    """What is said when another number of arguments is given; the number given comes at the end."""
    names = ", ".join(f"{spec.name}{' (written)' if spec.is_output else ''}" for spec in args)
    escaped = f"kernel {name} takes {len(args)} tensors ({names}) and then, if wanted, a number of threads"
    # The text is a format of snprintf.
    return escaped.replace("%", "%%") + "; %d arguments are given"


def _spec(kernel: str, spec: ArgSpec, constants: _Constants) -> str:
    """The constant that `retune.data` checks an argument against."""
    shape = spec.buffer_shape
    form = "" if spec.packing is None else f", the packed form of {list(spec.shape)}"
    kind = dlpack_type(spec.dtype)
    fields = (
        f"ptr {constants.text(f'kernel {kernel}, argument {spec.name}')}",
        f"ptr {constants.text(f'{spec.dtype}{list(shape)}{form}')}",
        f"ptr {constants.numbers(shape)}",
        f"i32 {len(shape)}",
        f"i32 {kind.word}",
    )
    return constants.add(f"%retune.spec {{ {', '.join(fields)} }}")


def _apart(args: Sequence[ArgSpec], name: str, constants: _Constants) -> list[str]:
    """The lines that ensure that nothing that is written is another argument too."""
    # Inputs may share memory: `noalias` is broken only if one of the two is written.
    pairs = [
        (one, two)
        for one in range(len(args))
        for two in range(one + 1, len(args))
        if args[one].is_output or args[two].is_output
    ]
    lines = []
    for number, (one, two) in enumerate(pairs):
        names = f"{args[one].name} and {args[two].name}"
        what = f"kernel {name}: the arguments {names} share memory, and one of them is written"
        # Two ranges overlap exactly if each begins before the other ends.
        lines += [
            f"apart{number}:",
            f"  %end{number} = getelementptr i8, ptr %b{one}, i64 {args[one].nbytes}",
            f"  %stop{number} = getelementptr i8, ptr %b{two}, i64 {args[two].nbytes}",
            f"  %low{number} = icmp ult ptr %b{one}, %stop{number}",
            f"  %high{number} = icmp ult ptr %b{two}, %end{number}",
            f"  %both{number} = and i1 %low{number}, %high{number}",
            f"  br i1 %both{number}, label %shared{number}, label %apart{number + 1}",
            f"shared{number}:",
            f"  call void @retune.raise(ptr @retune.value_error, ptr {constants.text(what)})",
            "  br label %refused",
        ]
    return [*lines, f"apart{len(pairs)}:"]


def _call_glue(kernel: str, call: ExternCall, constants: _Constants) -> str:
    """The C function of a call: it makes the FFI's arguments of the kernel's buffers and calls the function by name."""
    body: list[str] = []
    buffers = 0
    for place, argument in enumerate(call.args):
        body.append(f"  %any{place} = getelementptr i8, ptr %args, i64 {16 * place}")
        if isinstance(argument, ExternBuffer):
            body.append(f"  %from{place} = getelementptr ptr, ptr %buffers, i64 {buffers}")
            body.append(f"  %data{place} = load ptr, ptr %from{place}, align 8")
            form = _form(argument, constants)
            body.append(f"  call void @retune.lend(ptr %data{place}, ptr {form}, ptr %any{place})")
            buffers += 1
        else:
            kind, value = _scalar(argument, constants)
            body.append(f"  %value{place} = getelementptr i8, ptr %any{place}, i64 8")
            body.append(f"  store i64 {kind}, ptr %any{place}, align 8")
            body.append(f"  store {value}, ptr %value{place}, align 8")
    missing = (
        f"kernel {kernel} calls the function {call.function}, which is not registered in this process; register it "
        "with register_func"
    )
    message, name = constants.text(missing), constants.text(call.function)
    key = constants.add(f"{{ ptr, i64 }} {{ ptr {name}, i64 {len(call.function.encode())} }}")
    return "\n".join(
        (
            f'define hidden i32 @"{call.symbol}"(ptr %buffers) {{',
            "entry:",
            f"  %args = alloca [{max(1, len(call.args))} x {{ i64, i64 }}], align 8",
            *body,
            f"  %code = call i32 @retune.call(ptr {key}, ptr {message}, ptr %args, i32 {len(call.args)})",
            "  ret i32 %code",
            "}",
        )
    )


def _form(spec: ExternBuffer, constants: _Constants) -> str:
    """The constant that `retune.lend` copies: a `DLManagedTensor` that still lacks its address."""
    strides: list[int] = []
    step = 1
    for extent in reversed(spec.shape):
        strides.insert(0, step)
        step *= extent
    fields = (
        "ptr null",
        "i64 1",  # the CPU, number 0
        f"i32 {len(spec.shape)}",
        f"i32 {dlpack_type(spec.dtype).word}",
        f"ptr {constants.numbers(spec.shape)}",
        f"ptr {constants.numbers(strides)}",
        "i64 0",
        "ptr null",
        "ptr @retune.forget",
    )
    return constants.add(f"%retune.form {{ {', '.join(fields)} }}")


def _scalar(argument: ExternArgument, constants: _Constants) -> tuple[FfiType, str]:
    match argument:
        case bool():
            return FfiType.BOOL, f"i64 {int(argument)}"
        case int():
            return FfiType.INT, f"i64 {argument}"
        case float():
            # A value of the FFI is eight bytes: a float is stored by its bits.
            return FfiType.FLOAT, f"i64 {struct.unpack('<q', struct.pack('<d', argument))[0]}"
        case _:
            return FfiType.RAW_TEXT, f"ptr {constants.text(str(argument))}"
