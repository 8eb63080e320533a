"""The TVM FFI's C interface for entries of kernels: constants, and LLVM functions that check arguments.

The layouts of `TVMFFIAny` (16 bytes: type at 0, value at 8), of objects (a header of 24 bytes) and of DLPack's
`DLTensor` are those of a 64-bit little-endian machine.
"""

from enum import IntEnum

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import BYTE, INT, LONG, POINTER, Argument, CFunction, CModule
from retune.compiler.core.dtype import NARROW
from retune.compiler.core.errors import LoweringError
from retune.compiler.runtime.artifact import ALIGNMENT


class FfiType(IntEnum):
    """Kinds of values as the FFI numbers them."""

    INT = 1
    BOOL = 2
    FLOAT = 3
    POINTER = 7
    RAW_TEXT = 8
    SHORT_TEXT = 11
    OBJECT = 64
    TEXT = 65
    TENSOR = 70


_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
CPU = 1
"""The number of a kind of device."""
_HEADER = 24
"""Bytes of an object before its `DLTensor`."""
_DATA, _DEVICE, _RANK, _TYPE, _SHAPE, _STRIDES, _OFFSET = 0, 8, 16, 20, 24, 32, 40
"""Where the fields of a `DLTensor` begin."""

_KINDS = (
    "None", "an int", "a bool", "a float", "a pointer", "a type", "a device", "", "a string", "bytes", "an object",
)  # fmt: skip
_CODE_NAMES = ("int", "uint", "float", "handle", "bfloat", "complex", "bool")
_MOST_TEXT = 1024


def dlpack_type(dtype: str) -> int:
    """A `DLDataType` of one lane as a number: code, bits and lanes; bytes for types of a byte or less that other
    libraries pack or lack. Raises: LoweringError when DLPack lacks it.
    """
    dtype = "uint8" if dtype in NARROW else dtype
    if dtype == "bool":
        return 6 | 8 << 8 | 1 << 16
    name = dtype.rstrip("0123456789")
    if name not in _CODES:
        raise LoweringError(f"DLPack has no element type {dtype}")
    return _CODES[name] | int(dtype[len(name) :]) << 8 | 1 << 16


class FfiModule(CModule):
    """A module with the functions that all entries share."""

    def __init__(self) -> None:
        super().__init__()
        self._format = self.declare("snprintf", "i32", "ptr, i64, ptr, ...")
        self.copy = self.declare("memcpy", "ptr", "ptr, ptr, i64")
        self.allocate = self.declare("aligned_alloc", "ptr", "i64, i64")
        self.free = self.declare("free", "void", "ptr")
        self._raise = self._define_raise()
        self.threads, self.data = self._threads(), self._data()
        self.aligned, self.restore = self._align(), self._restore()

    def raise_error(self, function: CFunction, kind: str, text: str | ir.Value, *values: Argument) -> None:
        """Set the FFI's error in `function`; `values` fill in the placeholders of `text`, as snprintf does it."""
        message = self.text(text) if isinstance(text, str) else text
        if values:
            room = function.slot(BYTE, _MOST_TEXT)
            function.call(self._format, room, _MOST_TEXT, message, *values)
            message = room
        function.call(self._raise, self.text(kind), message)

    def _define_raise(self) -> ir.Function:
        set_error = self.declare("TVMFFIErrorSetRaisedFromCStr", "void", "ptr, ptr", "extern_weak")
        error = self.define("retune.raise", "void", "ptr, ptr")
        error.function.attributes.add("cold")
        error.function.attributes.add("noinline")
        with error.unless(error.is_null(set_error)):
            error.call(set_error, *error.args)
        error.ret()
        return error.function

    def _threads(self) -> ir.Function:
        """The number of threads of a call, given behind the tensors or what OpenMP would take; 0 after an error."""
        count = self.define("retune.threads", "i32", "ptr, ptr, ptr, i32, i32, i32")
        builder = count.builder
        where, takes, args, given, tensors, most = count.args
        with count.when(count.equals(given, tensors)):
            usual = count.call(self.declare("omp_get_max_threads", "i32"))
            usual = builder.select(builder.icmp_signed("<", usual, INT(1)), INT(1), usual)
            count.ret(builder.select(builder.icmp_signed(">", usual, most), most, usual))
        with count.unless(count.equals(given, builder.add(tensors, INT(1)))):
            self.raise_error(count, "TypeError", takes, given)
            count.ret(0)
        value = count.at(args, builder.mul(builder.sext(tensors, LONG), LONG(16)))
        number = count.load(LONG, value, 8)
        is_fit = count.equals(count.load(INT, value), FfiType.INT)
        is_fit = builder.and_(is_fit, builder.icmp_signed(">", number, LONG(0)))
        is_fit = builder.and_(is_fit, builder.icmp_signed("<=", number, builder.zext(most, LONG)))
        with count.unless(is_fit):
            text = "%s: the number of threads must be an integer from 1 to %d"
            self.raise_error(count, "ValueError", text, where, most)
            count.ret(0)
        count.ret(builder.trunc(number, INT))
        return count.function

    def _data(self) -> ir.Function:
        """The address of a tensor's first element, or null after an error.

        Its parameters are a `TVMFFIAny` and what the tensor must be: texts for errors, shape, rank and type.
        """
        find = self.define("retune.data", "ptr", "ptr, ptr, ptr, ptr, i32, i32")
        builder = find.builder
        value, where, what, shape, rank, _ = find.args

        def require(condition: ir.Value, kind: str, text: str, *values: Argument) -> None:
            with find.unless(condition):
                self.raise_error(find, kind, text, where, *values)
                find.ret()

        kind = find.load(INT, value)
        is_object = find.equals(kind, FfiType.TENSOR)
        with find.unless(builder.or_(is_object, find.equals(kind, FfiType.POINTER))):
            self.raise_error(
                find, "TypeError", "%s: expected a tensor %s, got %s", where, what, self._kind_name(find, kind)
            )
            find.ret()
        tensor = find.at(find.load(POINTER, value, 8), builder.select(is_object, LONG(_HEADER), LONG(0)))
        device = find.load(INT, tensor, _DEVICE)
        text = "%s: expected memory of the CPU, got a tensor on device type %d"
        require(find.equals(device, CPU), "ValueError", text, device)
        self._check_type(find, find.load(INT, tensor, _TYPE))
        found_rank = find.load(INT, tensor, _RANK)
        require(find.equals(found_rank, rank), "ValueError", "%s: expected %s, got %d dimensions", what, found_rank)
        found_shape, strides = find.load(POINTER, tensor, _SHAPE), find.load(POINTER, tensor, _STRIDES)
        count, step = builder.zext(rank, LONG), find.slot(LONG)
        find.store(LONG(1), step)
        with find.loop(count) as index:
            axis = builder.sub(builder.sub(count, LONG(1)), index)  # strides grow from the last dimension
            number = builder.trunc(axis, INT)
            extent = find.load(LONG, find.element(LONG, found_shape, axis))
            is_same = find.equals(extent, find.load(LONG, find.element(LONG, shape, axis)))
            text = "%s: expected %s, got %lld elements in dimension %d"
            require(is_same, "ValueError", text, what, extent, number)
            distance = find.load(LONG, step)
            with find.unless(builder.or_(find.is_null(strides), find.equals(extent, 1))):
                stride = find.load(LONG, find.element(LONG, strides, axis))
                text = "%s: expected %s without gaps, got a stride of %lld elements in dimension %d; copy it"
                require(find.equals(stride, distance), "ValueError", text, what, stride, number)
            find.store(builder.mul(distance, extent), step)
        memory = find.load(POINTER, tensor, _DATA)
        require(builder.not_(find.is_null(memory)), "ValueError", "%s: the tensor %s has no memory", what)
        find.ret(find.at(memory, find.load(LONG, tensor, _OFFSET)))
        return find.function

    def _kind_name(self, find: CFunction, kind: ir.Value) -> ir.Value:
        """What an argument is that is no tensor, as text."""
        builder = find.builder
        is_known = builder.icmp_unsigned("<", kind, INT(len(_KINDS)))
        number = builder.select(is_known, kind, INT(len(_KINDS) - 1))
        # A short string is kept in the value itself, a long one in an object.
        is_text = builder.or_(find.equals(kind, FfiType.SHORT_TEXT), find.equals(kind, FfiType.TEXT))
        number = builder.zext(builder.select(is_text, INT(FfiType.RAW_TEXT), number), LONG)
        return find.load(POINTER, find.element(POINTER, self.texts(_KINDS), number))

    def _check_type(self, find: CFunction, dtype: ir.Value) -> None:
        """Refuse elements of another type than `retune.data` must find."""
        builder = find.builder
        _, where, what, _, _, wanted = find.args
        with find.unless(find.equals(dtype, wanted)):
            lanes = builder.lshr(dtype, INT(16))
            with find.unless(find.equals(lanes, 1)):
                self.raise_error(find, "TypeError", "%s: expected %s, got elements of %d lanes", where, what, lanes)
                find.ret()
            code, bits = builder.and_(dtype, INT(255)), builder.and_(builder.lshr(dtype, INT(8)), INT(255))
            is_known = builder.icmp_unsigned("<", code, INT(len(_CODE_NAMES)))
            number = builder.zext(builder.select(is_known, code, INT(_CODE_NAMES.index("handle"))), LONG)
            name = find.load(POINTER, find.element(POINTER, self.texts(_CODE_NAMES), number))
            self.raise_error(find, "TypeError", "%s: expected %s, got elements of type %s%d", where, what, name, bits)
            find.ret()

    def _align(self) -> ir.Function:
        """The memory itself where it starts at a multiple of 64 bytes, else a copy that does; null without room."""
        align = self.define("retune.aligned", "ptr", "ptr, i64, i64")
        data, nbytes, room = align.args
        rest = align.builder.and_(align.builder.ptrtoint(data, LONG), LONG(ALIGNMENT - 1))
        with align.when(align.equals(rest, 0)):
            align.ret(data)
        copy = align.call(self.allocate, ALIGNMENT, room)
        with align.unless(align.is_null(copy)):
            align.call(self.copy, copy, data, nbytes)
        align.ret(copy)
        return align.function

    def _restore(self) -> ir.Function:
        """Free a copy of an argument, after writing it back if the kernel wrote it."""
        restore = self.define("retune.restore", "void", "ptr, ptr, i64, i1")
        data, used, nbytes, is_written = restore.args
        is_same = restore.builder.icmp_unsigned("==", data, used)
        with restore.unless(restore.builder.or_(is_same, restore.is_null(used))):
            with restore.when(is_written):
                restore.call(self.copy, data, used, nbytes)
            restore.call(self.free, used)
        restore.ret()
        return restore.function
