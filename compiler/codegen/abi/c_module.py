"""LLVM modules of functions that C programs call, written with llvmlite's IRBuilder.

Types in signatures are LLVM's words: `ptr, i64, ...`. Python's numbers and `None` stand for constants in calls.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from llvmlite import ir

VOID, FLAG, BYTE, INT, LONG = ir.VoidType(), *map(ir.IntType, (1, 8, 32, 64))
POINTER = ir.PointerType()
NULL = POINTER(None)
_TYPES = {"void": VOID, "i1": FLAG, "i32": INT, "i64": LONG, "ptr": POINTER}

Argument: TypeAlias = ir.Value | int | None


def signature(result: str, parameters: str = "") -> ir.FunctionType:
    """The type of a function; `...` as the last parameter stands for any others."""
    names = parameters.split(", ") if parameters else []
    return ir.FunctionType(_TYPES[result], [_TYPES[name] for name in names if name != "..."], "..." in names)


def array_of(kind: ir.Type, values: Sequence[Argument]) -> ir.Constant:
    """The constant array of `values`; an empty one gets an element."""
    return ir.Constant(ir.ArrayType(kind, max(1, len(values))), list(values) or [kind(None if kind is POINTER else 0)])


def record(*fields: ir.Value) -> ir.Constant:
    """The constant structure of `fields`, laid out as in C."""
    return ir.Constant(ir.LiteralStructType([field.type for field in fields]), fields)


class CModule:
    """A module of C functions. Strings that occur several times are kept once."""

    def __init__(self) -> None:
        self._module = ir.Module()
        self._texts: dict[str, ir.GlobalVariable] = {}

    def __str__(self) -> str:
        return str(self._module)

    def declare(self, name: str, result: str, parameters: str = "", linkage: str = "") -> ir.Function:
        """A function of another object; `linkage` may be a visibility, too."""
        function = ir.Function(self._module, signature(result, parameters), name)
        function.linkage = linkage
        return function

    def define(self, name: str, result: str, parameters: str = "", linkage: str = "internal") -> "CFunction":
        """A function of this module, still without instructions."""
        return CFunction(self.declare(name, result, parameters, linkage))

    def variable(self, name: str, initial: ir.Constant, *, thread_local: bool = False) -> ir.GlobalVariable:
        variable = ir.GlobalVariable(self._module, initial.type, name)
        variable.initializer, variable.linkage = initial, "internal"
        variable.storage_class = "thread_local" if thread_local else ""
        return variable

    def constant(self, value: ir.Constant) -> ir.GlobalVariable:
        """The address of a constant."""
        name = self._module.get_unique_name("retune.constant")
        constant = self.variable(name, value)
        constant.linkage, constant.unnamed_addr, constant.global_constant = "private", True, True
        return constant

    def external(self, name: str, alignment: int) -> ir.GlobalVariable:
        """The address of bytes that another object of the library defines."""
        variable = ir.GlobalVariable(self._module, ir.ArrayType(BYTE, 0), name)
        variable.linkage, variable.storage_class = "external", "hidden"
        variable.global_constant, variable.align = True, alignment
        return variable

    def text(self, text: str) -> ir.GlobalVariable:
        """The address of a string that ends with a zero."""
        if text not in self._texts:
            data = bytearray(text.encode() + b"\0")
            self._texts[text] = self.constant(ir.Constant(ir.ArrayType(BYTE, len(data)), data))
        return self._texts[text]

    def texts(self, texts: Sequence[str]) -> ir.GlobalVariable:
        """The address of an array of strings."""
        return self.constant(array_of(POINTER, [self.text(text) for text in texts]))


class CFunction:
    """Writes a function from its first instruction to its last; `builder` has the instructions without a method."""

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.args: Sequence[ir.Value] = function.args
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))

    def slot(self, kind: ir.Type, count: ir.Value | int = 1) -> ir.Value:
        """Memory of `count` values on the stack."""
        slot = self.builder.alloca(kind, count)
        slot.align, slot.type = 8, POINTER
        return slot

    def at(self, pointer: ir.Value, offset: ir.Value | int) -> ir.Value:
        """The address `offset` bytes behind `pointer`."""
        return pointer if isinstance(offset, int) and offset == 0 else self.element(BYTE, pointer, offset)

    def element(self, kind: ir.Type, pointer: ir.Value, index: ir.Value | int) -> ir.Value:
        """The address of an element of an array."""
        address = self.builder.gep(pointer, [_constant(index, LONG)], source_etype=kind)
        address.type = POINTER
        return address

    def load(self, kind: ir.Type, pointer: ir.Value, offset: int = 0) -> ir.Value:
        """The value `offset` bytes behind `pointer`."""
        return self.builder.load(self.at(pointer, offset), typ=kind)

    def store(self, value: ir.Value, pointer: ir.Value, offset: int = 0) -> None:
        """Write `value` to `offset` bytes behind `pointer`."""
        self.builder.store(value, self.at(pointer, offset))

    def call(self, function: ir.Value, *arguments: Argument) -> ir.Value:
        """The result of `function`, or of the function of type `signature(...)` that a pointer was loaded as."""
        kinds = [*function.function_type.args, *[INT] * len(arguments)]  # a number behind `...` is an int, as in C
        return self.builder.call(function, list(map(_constant, arguments, kinds)))

    def is_null(self, value: ir.Value) -> ir.Value:
        return self.builder.icmp_unsigned("==", value, NULL)

    def equals(self, value: ir.Value, other: ir.Value | int) -> ir.Value:
        return self.builder.icmp_unsigned("==", value, _constant(other, value.type))

    @contextmanager
    def when(self, condition: ir.Value) -> Iterator[None]:
        """Write what happens where `condition` is true."""
        with self.builder.if_then(condition):
            yield

    @contextmanager
    def unless(self, condition: ir.Value) -> Iterator[None]:
        """Write what happens where `condition` is false."""
        with self.builder.if_then(self.builder.not_(condition)):
            yield

    def ret_error(self, status: ir.Value) -> None:
        """Return `status` where it is not null."""
        with self.unless(self.is_null(status)):
            self.ret(status)

    @contextmanager
    def loop(self, count: ir.Value) -> Iterator[ir.Value]:
        """Write what happens for each index, an i64, below `count`."""
        builder, before = self.builder, self.builder.block
        test, body, after = (builder.append_basic_block(name) for name in ("test", "body", "after"))
        builder.branch(test)
        builder.position_at_end(test)
        index = builder.phi(LONG)
        index.add_incoming(LONG(0), before)
        builder.cbranch(builder.icmp_unsigned("<", index, count), body, after)
        builder.position_at_end(body)
        yield index
        index.add_incoming(builder.add(index, LONG(1)), builder.block)
        builder.branch(test)
        builder.position_at_end(after)

    def ret(self, value: ir.Value | int | None = None) -> None:
        result = self.function.function_type.return_type
        if isinstance(result, ir.VoidType):
            self.builder.ret_void()
        else:
            self.builder.ret(_constant(value, result))


def _constant(value: Argument, kind: ir.Type) -> ir.Value:
    return value if isinstance(value, ir.Value) else kind(value)
