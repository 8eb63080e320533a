"""Emits the addresses of buffer accesses, masked loads and stores, and conversions between register and memory form.

Plain loads are in `expressions.py`, plain stores in `body.py`. The flat index of an access is a constant plus atoms
(variables, or index arithmetic that is not affine) times coefficients. What an outer loop adds to an address is
computed where that loop starts, including arithmetic such as divisions; unrolled loops only add constants.
"""

from retune.compiler.codegen.conversions import cast, in_register, low_bits
from retune.compiler.codegen.emitter import Emitter
from retune.compiler.codegen.types import intrinsic_suffix, item_bytes, literal, memory_type
from retune.compiler.codegen.values import Address, Ramp, Scalar, Value
from retune.compiler.core.dtype import NARROW
from retune.compiler.ir.affine import IndexForm, flat_index
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Buffer, Const, Expr, Load, Var
from retune.compiler.ir.visit import parts, walk

_CACHE_LINE = 64
_PREFETCH_BYTES = 1 << 12
"""How far ahead streamed buffers are asked for: 2 to 16 KiB gain the same, 4 to 14% of a network (Sapphire Rapids)."""
_TOTAL = (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)
"""Integer operations that are defined for all operands, unlike division by 0."""


class MemoryEmitter(Emitter):
    """Emits addresses, masked accesses and conversions of form; `ExpressionEmitter` is built on it."""

    def form(self, buffer: Buffer, indices: tuple[Expr, ...]) -> IndexForm:
        """The flat index of an access, in elements: computed once, not again in each unrolled copy."""
        return self.memo(flat_index, buffer.shape, indices)

    def locate(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Address:
        """Emit the address of an element, or of the first lane of a vector loop.

        Literals add up to the address's offset, lanes to its stride, and registers of every scope to its pointer. The
        stride is None, without a pointer, if lanes are at no constant distance: the caller then locates each lane.
        """
        storage = self.storage[buffer]
        form = self.form(buffer, indices)
        offset = form.const
        stride: int | None = 0
        # By scope: registers and their coefficients.
        by_depth: dict[int, list[tuple[str, int]]] = {}
        for atom, coefficient in form.terms.items():
            binding = self.binding(atom)
            if isinstance(binding, int):
                offset += coefficient * binding
            elif isinstance(binding, Scalar):
                by_depth.setdefault(binding.depth, []).append((binding.text, coefficient))
            elif isinstance(binding, Ramp):
                offset += coefficient * binding.offset
                stride = None if stride is None else stride + coefficient
                if binding.base is not None:
                    base = self.env[binding.base]
                    assert isinstance(base, Scalar)
                    by_depth.setdefault(base.depth, []).append((base.text, coefficient))
            else:
                value, depth = self.atom(atom)
                # A vector of indices, as in a gather: lanes are at no constant distance.
                if value.lanes > 1:
                    return Address("", 0, None)
                by_depth.setdefault(depth, []).append((value.text, coefficient))
        element = memory_type(buffer.dtype)
        pointer = storage.pointer
        not_hoisted = by_depth.pop(-1, [])
        # From the outermost loop inwards: each part is computed where its variable is known (loop-invariant code
        # motion).
        for depth in sorted(by_depth):
            # Sorted, so that accesses with the same outer terms share the hoisted prefix of their address.
            for text, coefficient in sorted(by_depth[depth]):
                if coefficient != 1:
                    text = self.writer.hoist(depth, ("mul", text, coefficient), f"mul nsw i64 {text}, {coefficient}")
                pointer = self.writer.hoist(
                    depth, ("gep", element, pointer, text), f"getelementptr {element}, ptr {pointer}, i64 {text}"
                )
        # Parts that depend on memory or this iteration come last, after everything that could be hoisted.
        for text, coefficient in not_hoisted:
            scaled = self.writer.value(f"mul i64 {text}, {coefficient}")
            pointer = self.writer.value(f"getelementptr {element}, ptr {pointer}, i64 {scaled}")
        # An accumulator inside a vector loop has a whole vector for each element.
        return Address(pointer, offset * storage.lanes, stride)

    def atom(self, expr: Expr) -> tuple[Value, int]:
        """Emit an index that is not affine. Returns its value, and the scope from which it is known (-1: only here)."""
        if any(isinstance(node, Load) for node in parts(expr)):
            # Not cached: the memory it reads may be written between two uses.
            return self.as_index(self.evaluate(expr)), -1
        bindings = {node: self.env.get(node) for node in walk(expr) if isinstance(node, Var)}
        key = ("atom", expr, tuple(bindings.items()))
        if _is_speculatable(expr) and all(isinstance(bound, (int, Scalar)) for bound in bindings.values()):
            # Of loop counters alone: it is computed where the innermost of these loops starts.
            depth = max((bound.depth for bound in bindings.values() if isinstance(bound, Scalar)), default=0)
            known = self.writer.scopes[depth].known
            if key not in known:
                hoisting = self.replace(writer=self.writer.at_scope(depth))
                known[key] = hoisting.as_index(hoisting.evaluate(expr)).text
            return Value(known[key], 1, INDEX), depth
        if key in self.writer.in_block:
            return Value(self.writer.in_block[key], 1, INDEX), -1
        value = self.as_index(self.evaluate(expr))
        if value.lanes == 1:
            self.writer.in_block[key] = value.text
        return value, -1

    def as_index(self, value: Value) -> Value:
        """Convert a value to the type of indices."""
        return cast(self.result, value, INDEX)

    def pointer_to(self, address: Address, buffer: Buffer) -> str:
        """Emit the pointer to an address, its offset included."""
        if address.offset == 0:
            return address.pointer
        kind = memory_type(buffer.dtype)
        key = ("address", kind, address.pointer, address.offset)
        return self.writer.once(key, f"getelementptr {kind}, ptr {address.pointer}, i64 {address.offset}")

    def prefetch(self, buffer: Buffer, address: Address, pointer: str) -> None:
        """Ask for what a loop over a streamed buffer reads soon, once for each cache line: the hardware's prefetchers
        stop at the end of a page, which is a few steps of a product.
        """
        if self.storage[buffer].is_streamed and address.offset * item_bytes(buffer.dtype) % _CACHE_LINE == 0:
            ahead = self.writer.value(f"getelementptr i8, ptr {pointer}, i64 {_PREFETCH_BYTES}")
            self.writer.put(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 3, i32 1)")

    def fallback(self, dtype: str, lanes: int, value: str) -> str:
        """A pointer to memory with a literal in every lane, to read where the real address is not valid."""
        key, known = ("fallback", dtype, lanes, value), self.writer.scopes[0].known
        if key not in known:
            kind = memory_type(dtype, lanes)
            known[key] = self.writer.alloca("fallback", kind)
            self.writer.entry.append(f"  store {kind} {value}, ptr {known[key]}, align 64")
        return known[key]

    def alignment(self, buffer: Buffer, indices: tuple[Expr, ...], lanes: int) -> int:  # noqa: ARG002
        """Bytes that divide the address of an access; CPUs need no more than an element."""
        return item_bytes(buffer.dtype)

    def masked_read(self, pointer: str, dtype: str, mask: Value, otherwise: str, align: int = 0) -> Value:
        """Load neighboring elements where the mask holds; the others are `otherwise`. A bool comes as a
        byte. `align` is in bytes; 0 means that of an element.
        """
        kind = memory_type(dtype, mask.lanes)
        suffix = intrinsic_suffix("int8" if dtype == "bool" else dtype, mask.lanes)
        operand = f"ptr align {align or item_bytes(dtype)} {pointer}"
        call = f"call {kind} @llvm.masked.load.{suffix}.p0({operand}, {mask.typed}, {kind} {otherwise})"
        return self.result(call, mask.lanes, dtype)

    def gather_items(self, buffer: Buffer, indices: tuple[Expr, ...], mask: Value, otherwise: str) -> Value:
        """Load an element for each lane where the mask holds, at a vector of indices, in one instruction; the others
        are `otherwise`.
        """
        lanes = mask.lanes
        form, element = self.form(buffer, indices), memory_type(buffer.dtype)
        index = Value(str(form.const), 1, INDEX)
        for atom, coefficient in form.terms.items():
            index, factor = self.align([index, self.as_index(self.evaluate(atom))])
            scaled = self.result(
                f"mul {factor.typed}, {literal(coefficient, INDEX, factor.lanes)}", factor.lanes, INDEX
            )
            index = self.result(f"add {index.typed}, {scaled.text}", factor.lanes, INDEX)
        index = self.splat(index, lanes)
        pointers = self.writer.value(f"getelementptr {element}, ptr {self.storage[buffer].pointer}, {index.typed}")
        kind, suffix = memory_type(buffer.dtype, lanes), intrinsic_suffix(buffer.dtype, lanes)
        operand = f"<{lanes} x ptr> align {item_bytes(buffer.dtype)} {pointers}"
        call = f"call {kind} @llvm.masked.gather.{suffix}.v{lanes}p0({operand}, {mask.typed}, {kind} {otherwise})"
        return self.result(call, lanes, buffer.dtype)

    def masked_write(self, pointer: str, value: Value, mask: Value) -> None:
        """Store neighboring elements where the mask holds; the value is in its form in memory."""
        suffix = intrinsic_suffix(value.dtype, mask.lanes)
        operand = f"ptr align {item_bytes(value.dtype)} {pointer}"
        self.writer.put(f"call void @llvm.masked.store.{suffix}.p0({value.typed}, {operand}, {mask.typed})")

    def from_memory(self, value: Value) -> Value:
        """Convert a loaded byte to a bool or an element below a byte; other types are unchanged."""
        if value.dtype in NARROW:
            return in_register(self.result, value)
        if value.dtype != "bool":
            return value
        zero = literal(0, "int8", value.lanes)
        return self.result(f"icmp ne {memory_type('bool', value.lanes)} {value.text}, {zero}", value.lanes, "bool")

    def to_memory(self, value: Value, dtype: str) -> Value:
        """Convert a value to `dtype`, in its form in memory: a bool is a byte there."""
        value = cast(self.result, value, dtype)
        if dtype in NARROW:
            return low_bits(self.result, value)
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
