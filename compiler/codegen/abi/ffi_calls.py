"""C functions through which a kernel calls functions of the FFI's registry, by name.

Each makes the FFI's arguments of the kernel's buffers, which are lent as tensors for the time of the call.
"""

import struct
from collections.abc import Sequence

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import INT, LONG, NULL, POINTER, array_of, record
from retune.compiler.codegen.abi.ffi_support import CPU, FfiModule, FfiType, dlpack_type
from retune.compiler.runtime.artifact import ExternArgument, ExternBuffer, ExternCall

_FORM_BYTES = 64
"""Of a `DLManagedTensor`: a `DLTensor` of 48 bytes, a context and a function that frees it."""


def write_calls(module: FfiModule, kernel: str, calls: Sequence[ExternCall]) -> None:
    """Add the functions of `calls` to `module`; errors name the `kernel`."""
    if calls:
        writer = _Calls(module, kernel)
        for call in calls:
            writer.write(call)


class _Calls:
    """The functions that all calls share, and those of each call."""

    def __init__(self, module: FfiModule, kernel: str) -> None:
        self._module, self._kernel = module, kernel
        self._release = module.declare("TVMFFIObjectDecRef", "i32", "ptr", "extern_weak")
        forget = module.define("retune.forget", "void", "ptr")
        forget.call(module.free, forget.args[0])
        forget.ret()
        self._forget = forget.function
        self._lend = self._lend_tensor()
        self._call = self._call_by_name(self._drop_arguments())

    def write(self, call: ExternCall) -> None:
        module = self._module
        glue = module.define(call.symbol, "i32", "ptr", "hidden")
        values = glue.slot(LONG, 2 * max(1, len(call.args)))
        buffers = 0
        for index, argument in enumerate(call.args):
            value = glue.at(values, 16 * index)
            if isinstance(argument, ExternBuffer):
                data = glue.load(POINTER, glue.args[0], 8 * buffers)
                glue.call(self._lend, data, self._form(argument), value)
                buffers += 1
            else:
                kind, content = self._scalar(argument)
                glue.store(LONG(kind), value)
                glue.store(content, value, 8)
        missing = (
            f"kernel {self._kernel} calls the function {call.function}, which is not registered in this process; "
            "register it with register_func"
        )
        name = record(module.text(call.function), LONG(len(call.function.encode())))
        message = module.text(missing)
        glue.ret(glue.call(self._call, module.constant(name), message, values, len(call.args)))

    def _lend_tensor(self) -> ir.Function:
        """Make a tensor of a kernel's memory, of the form given; None where that fails."""
        module = self._module
        lend = module.define("retune.lend", "void", "ptr, ptr, ptr")
        data, form, value = lend.args
        make = module.declare("TVMFFITensorFromDLPack", "i32", "ptr, i32, i32, ptr", "extern_weak")
        slot = lend.at(value, 8)
        lend.store(LONG(0), value)
        lend.store(NULL, slot)
        tensor = lend.call(module.declare("malloc", "ptr", "i64"), _FORM_BYTES)
        with lend.unless(lend.is_null(tensor)):
            lend.call(module.copy, tensor, form, _FORM_BYTES)
            lend.store(data, tensor)
            with lend.when(lend.equals(lend.call(make, tensor, 0, 0, slot), 0)):
                lend.store(LONG(FfiType.TENSOR), value)
                lend.ret()
            lend.store(NULL, slot)
            lend.call(module.free, tensor)
        lend.ret()
        return lend.function

    def _drop_arguments(self) -> ir.Function:
        """Release the tensors among arguments."""
        drop = self._module.define("retune.drop", "void", "ptr, i32")
        values, count = drop.args
        with drop.loop(drop.builder.zext(count, LONG)) as index:
            value = drop.at(values, drop.builder.mul(index, LONG(16)))
            with drop.when(drop.equals(drop.load(INT, value), FfiType.TENSOR)):
                drop.call(self._release, drop.load(POINTER, value, 8))
        drop.ret()
        return drop.function

    def _call_by_name(self, drop: ir.Function) -> ir.Function:
        """Call the function of a name, a text and its length; 0, or -1 after an error."""
        module = self._module
        call = module.define("retune.call", "i32", "ptr, ptr, ptr, i32")
        name, missing, values, count = call.args
        function, result = call.slot(POINTER), call.slot(LONG, 2)
        for slot, offset in ((function, 0), (result, 0), (result, 8)):
            call.store(LONG(0), slot, offset)
        find = module.declare("TVMFFIFunctionGetGlobal", "i32", "ptr, ptr", "extern_weak")

        def fail_if(condition: ir.Value, message: ir.Value | None = None) -> None:
            with call.when(condition):
                if message is not None:
                    module.raise_error(call, "ValueError", message)
                call.call(drop, values, count)
                call.ret(-1)

        fail_if(call.builder.not_(call.equals(call.call(find, name, function), 0)))
        handle = call.load(POINTER, function)
        fail_if(call.is_null(handle), missing)
        invoke = module.declare("TVMFFIFunctionCall", "i32", "ptr, ptr, i32, ptr", "extern_weak")
        code = call.call(invoke, handle, values, count, result)
        call.call(self._release, handle)
        is_object = call.builder.icmp_signed(">=", call.load(INT, result), INT(FfiType.OBJECT))
        with call.when(is_object):
            call.call(self._release, call.load(POINTER, result, 8))
        fail_if(call.builder.not_(call.equals(code, 0)))
        call.call(drop, values, count)
        call.ret(0)
        return call.function

    def _form(self, spec: ExternBuffer) -> ir.Value:
        """The constant that `retune.lend` copies: a `DLManagedTensor` that still lacks its address."""
        strides: list[int] = []
        step = 1
        for extent in reversed(spec.shape):
            strides.insert(0, step)
            step *= extent
        shape, distances = (self._module.constant(array_of(LONG, numbers)) for numbers in (spec.shape, strides))
        rank, kind = INT(len(spec.shape)), INT(dlpack_type(spec.dtype))
        return self._module.constant(record(NULL, LONG(CPU), rank, kind, shape, distances, LONG(0), NULL, self._forget))

    def _scalar(self, argument: ExternArgument) -> tuple[FfiType, ir.Value]:
        """The FFI's kind and value of a number or a text."""
        match argument:
            case bool():
                return FfiType.BOOL, LONG(int(argument))
            case int():
                return FfiType.INT, LONG(argument)
            case float():
                # A value of the FFI is eight bytes: a float is stored by its bits.
                return FfiType.FLOAT, LONG(struct.unpack("<q", struct.pack("<d", argument))[0])
            case _:
                return FfiType.RAW_TEXT, self._module.text(str(argument))
