"""Emits the addresses of buffer accesses, and the loads and stores.

The part of an address that an outer loop adds is computed where that loop starts, including index arithmetic such as
divisions; unrolled loops only add constants.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from retune.compiler.codegen.conversions import cast
from retune.compiler.codegen.types import intrinsic_suffix, item_bytes, literal, llvm_type, memory_type
from retune.compiler.codegen.values import Address, LoopCounter, Ramp, Scalar, Storage, Value
from retune.compiler.codegen.writer import FunctionWriter
from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.affine import IndexForm, flat_index
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Buffer, Const, Expr, Load, Var
from retune.compiler.ir.stmt import Stmt
from retune.compiler.ir.visit import parts, walk

_TOTAL = (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)
"""Integer operations that are defined for all operands, unlike division by 0."""


class MemoryEmitter(ABC):
    """Computes addresses. `pointers` are the buffers' base addresses, `vector_bytes` is the register width, `library`:
    functions of the C library can be called.
    """

    library = True

    def __init__(self, pointers: dict[Buffer, str], vector_bytes: int, permutes_tables: bool = False) -> None:
        self.writer = FunctionWriter()
        self.vector_bytes = vector_bytes
        self.permutes_tables = permutes_tables
        self.storage = {buffer: Storage(pointer) for buffer, pointer in pointers.items()}
        self.env: dict[Var, int | Scalar | Ramp] = {}
        self.counters: dict[Var, LoopCounter] = {}
        self.vector: Var | None = None
        # The active lanes (None: all), and how many come first if that is a literal.
        self.mask: Value | None = None
        self.active: int | None = None
        self.stack_bytes = 0
        # The value that joins one more element to a reduction, while it is stored.
        self.fallbacks: dict[tuple[str, int, str], str] = {}
        self.temporaries: dict[tuple[Buffer, int], str] = {}
        # These are keyed by identity, which is safe because the tuples are kept alive with the answers.
        self.forms: dict[tuple[int, tuple[int, ...]], tuple[IndexForm, tuple[Expr, ...]]] = {}
        self.conditions: dict[int, tuple[list[tuple[Expr, IndexForm | None]], Expr]] = {}
        self.natives: dict[int, tuple[int, Stmt]] = {}
        self.moves: dict[tuple[int, Var | None], tuple[bool, tuple[Expr, ...]]] = {}

    @abstractmethod
    def evaluate(self, expr: Expr) -> Value:
        """Write the instructions of an expression."""

    def form(self, buffer: Buffer, indices: tuple[Expr, ...]) -> IndexForm:
        """The flat index, computed once an access, not once an unrolled copy."""
        key = (id(indices), buffer.shape)
        if key not in self.forms:
            self.forms[key] = (flat_index(buffer.shape, indices), indices)
        return self.forms[key][0]

    def lanes_of(self, exprs: tuple[Expr, ...]) -> int:
        """Lanes of the active vector loop if any of the expressions moves with it, else 1."""
        ramp = self.env.get(self.vector) if self.vector is not None else None
        if not isinstance(ramp, Ramp):
            return 1
        key = (id(exprs), self.vector)
        if key not in self.moves:
            self.moves[key] = (any(node == self.vector for expr in exprs for node in parts(expr)), exprs)
        return ramp.lanes if self.moves[key][0] else 1

    def locate(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Address:
        """The address of an element: literals, then the contribution of each outer loop, then the lanes."""
        storage = self.storage[buffer]
        form = self.form(buffer, indices)
        offset = form.const
        stride: int | None = 0
        by_depth: dict[int, list[tuple[str, int]]] = {}
        for atom, coefficient in form.terms.items():
            bound = self.env.get(atom) if isinstance(atom, Var) else None
            if isinstance(bound, int):
                offset += coefficient * bound
            elif isinstance(bound, Scalar):
                by_depth.setdefault(bound.depth, []).append((bound.text, coefficient))
            elif isinstance(bound, Ramp):
                offset += coefficient * bound.offset
                stride = None if stride is None else stride + coefficient
                if bound.base is not None:
                    base = self.env[bound.base]
                    assert isinstance(base, Scalar)
                    by_depth.setdefault(base.depth, []).append((base.text, coefficient))
            else:
                value, depth = self.atom(atom)
                # A vector of indices, as in a gather: lanes are at no constant distance.
                if value.lanes > 1:
                    return Address("", 0, None)
                by_depth.setdefault(depth, []).append((value.text, coefficient))
        kind = memory_type(buffer.dtype)
        pointer = storage.pointer
        current = by_depth.pop(-1, [])
        # From the outermost loop inwards: each part is computed where its variable is known (loop-invariant code
        # motion).
        for depth in sorted(by_depth):
            # Sorted, so that accesses with the same outer terms share the hoisted prefix of their address.
            for text, coefficient in sorted(by_depth[depth]):
                if coefficient != 1:
                    text = self.writer.hoisted(depth, ("mul", text, coefficient), f"mul nsw i64 {text}, {coefficient}")
                pointer = self.writer.hoisted(
                    depth, ("gep", kind, pointer, text), f"getelementptr {kind}, ptr {pointer}, i64 {text}"
                )
        # Parts that depend on memory or this iteration come last, after everything that could be hoisted.
        for text, coefficient in current:
            scaled = self.writer.value(f"mul i64 {text}, {coefficient}")
            pointer = self.writer.value(f"getelementptr {kind}, ptr {pointer}, i64 {scaled}")
        # An accumulator inside a vector loop has a whole vector for each element.
        return Address(pointer, offset * storage.lanes, stride)

    def atom(self, expr: Expr) -> tuple[Value, int]:
        """The value of an index that is not affine, and its scope (-1: the current point)."""
        if any(isinstance(node, Load) for node in parts(expr)):
            # Not cached: the memory it reads may be written between two uses.
            return self.as_index(self.evaluate(expr)), -1
        bindings = {node: self.env.get(node) for node in walk(expr) if isinstance(node, Var)}
        key = ("atom", expr, tuple(bindings.items()))
        if _is_speculatable(expr) and all(isinstance(bound, (int, Scalar)) for bound in bindings.values()):
            # Of loop counters alone: it is computed where the innermost of these loops starts.
            depth = max((bound.depth for bound in bindings.values() if isinstance(bound, Scalar)), default=0)
            with self.writer.at_scope(depth) as scope:
                if key not in scope.known:
                    scope.known[key] = self.as_index(self.evaluate(expr)).text
            return Value(scope.known[key], 1, INDEX), depth
        if key in self.writer.in_block:
            return Value(self.writer.in_block[key], 1, INDEX), -1
        value = self.as_index(self.evaluate(expr))
        if value.lanes == 1:
            self.writer.in_block[key] = value.text
        return value, -1

    def as_index(self, value: Value) -> Value:
        return cast(self.result, value, INDEX)

    def pointer_to(self, address: Address, buffer: Buffer) -> str:
        """The pointer of an address."""
        if address.offset == 0:
            return address.pointer
        kind = memory_type(buffer.dtype)
        key = ("address", kind, address.pointer, address.offset)
        return self.writer.once(key, f"getelementptr {kind}, ptr {address.pointer}, i64 {address.offset}")

    def fallback(self, dtype: str, lanes: int, value: str) -> str:
        """A pointer to memory with a literal in every lane, to read where the real address is not valid."""
        key = (dtype, lanes, value)
        if key not in self.fallbacks:
            kind = memory_type(dtype, lanes)
            pointer = self.writer.fresh("fallback")
            self.writer.entry.append(f"  {pointer} = alloca {kind}, align 64")
            self.writer.entry.append(f"  store {kind} {value}, ptr {pointer}, align 64")
            self.fallbacks[key] = pointer
        return self.fallbacks[key]

    def alignment(self, buffer: Buffer, indices: tuple[Expr, ...], lanes: int) -> int:  # noqa: ARG002
        """Bytes that divide the address of an access; CPUs need no more than an element."""
        return item_bytes(buffer.dtype)

    def each_lane(self, make: Callable[[], str]) -> list[str]:
        """`make` once an active lane, with the vector variable bound to that lane."""
        assert self.vector is not None
        ramp, mask = self.env[self.vector], self.mask
        assert isinstance(ramp, Ramp)
        if mask is not None and self.active is None:
            raise LoweringError("lanes under a mask that is computed do not lie side by side")
        self.mask = None
        results = []
        for lane in range(ramp.lanes if self.active is None else self.active):
            self.env[self.vector] = Ramp(ramp.base, ramp.offset + lane, 1)
            results.append(make())
        self.env[self.vector], self.mask = ramp, mask
        return results

    def mask_of(self, lanes: int) -> Value | None:
        """The mask of a memory access of `lanes` lanes."""
        return self.mask if lanes > 1 else None

    def masked_read(self, pointer: str, dtype: str, mask: Value, otherwise: str, align: int = 0) -> Value:
        """Neighboring elements where the mask holds, and a literal elsewhere; a bool comes as a byte."""
        kind = memory_type(dtype, mask.lanes)
        suffix = intrinsic_suffix("int8" if dtype == "bool" else dtype, mask.lanes)
        operand = f"ptr align {align or item_bytes(dtype)} {pointer}"
        call = f"call {kind} @llvm.masked.load.{suffix}.p0({operand}, {mask.typed}, {kind} {otherwise})"
        return self.result(call, mask.lanes, dtype)

    def masked_write(self, pointer: str, value: Value, mask: Value) -> None:
        """Neighboring elements where the mask holds; the value is in its form in memory."""
        suffix = intrinsic_suffix(value.dtype, mask.lanes)
        operand = f"ptr align {item_bytes(value.dtype)} {pointer}"
        self.writer.put(f"call void @llvm.masked.store.{suffix}.p0({value.typed}, {operand}, {mask.typed})")

    def result(self, instruction: str, lanes: int, dtype: str) -> Value:
        """Append an instruction with a result."""
        return Value(self.writer.value(instruction), lanes, dtype)

    def splat(self, value: Value, lanes: int) -> Value:
        if value.lanes == lanes:
            return value
        if value.lanes != 1:
            raise LoweringError(f"a vector of {value.lanes} lanes meets one of {lanes}")
        if not value.text.startswith("%"):
            return Value(f"splat ({value.typed})", lanes, value.dtype)
        kind = llvm_type(value.dtype, lanes)
        key = ("splat", value.text, lanes)
        if key not in self.writer.in_block:
            # LLVM's idiom of a splat, which selection turns into one broadcast.
            first = self.writer.value(f"insertelement {kind} poison, {value.typed}, i64 0")
            zeros = f"<{lanes} x i32> zeroinitializer"
            self.writer.in_block[key] = self.writer.value(f"shufflevector {kind} {first}, {kind} poison, {zeros}")
        return Value(self.writer.in_block[key], lanes, value.dtype)

    def aligned(self, values: Sequence[Value]) -> list[Value]:
        lanes = max(value.lanes for value in values)
        return [self.splat(value, lanes) for value in values]

    def from_memory(self, value: Value) -> Value:
        """A loaded byte as a bool; other types are unchanged."""
        if value.dtype != "bool":
            return value
        zero = literal(0, "int8", value.lanes)
        return self.result(f"icmp ne {memory_type('bool', value.lanes)} {value.text}, {zero}", value.lanes, "bool")

    def to_memory(self, value: Value, dtype: str) -> Value:
        """A value in its form in memory."""
        value = cast(self.result, value, dtype)
        if dtype != "bool":
            return value
        return self.result(f"zext {value.typed} to {memory_type('bool', value.lanes)}", value.lanes, "int8")


def _is_speculatable(expr: Expr) -> bool:
    """Whether an index is plain arithmetic that is defined for all operands, so that it may be computed early."""
    return all(
        isinstance(node, (Const, Var))
        or (isinstance(node, Binary) and (node.op in _TOTAL or isinstance(node.rhs, Const)))
        for node in walk(expr)
    )
