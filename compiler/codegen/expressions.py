"""Emits the instructions of an expression of the loop IR.

A value is a vector exactly when it varies with the active vector loop. The side of a choice that is not taken makes no
additional reads.
"""

from collections.abc import Iterator

from retune.compiler.codegen.arithmetic import arithmetic
from retune.compiler.codegen.byte_tables import byte_index, is_byte_table, look_up
from retune.compiler.codegen.conditions import holds
from retune.compiler.codegen.conversions import cast
from retune.compiler.codegen.dot_products import dot
from retune.compiler.codegen.intrinsics import call_instruction
from retune.compiler.codegen.memory_access import MemoryEmitter
from retune.compiler.codegen.types import has_memory_form, is_float, item_bytes, literal, llvm_type, memory_type
from retune.compiler.codegen.values import Address, Scalar, Value
from retune.compiler.codegen.vector_builder import VectorBuilder
from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import BOOL, INDEX, Binary, BinaryOp, Call, Cast, Const, Dot, Expr, Load, Not, Select, Var
from retune.compiler.ir.visit import children, of_type, parts

_GATHERED = ("float32", "float64", "int32", "uint32", "int64", "uint64")
"""The types of elements that AVX-512 gathers."""


class ExpressionEmitter(MemoryEmitter):
    """Writes the instructions of expressions."""

    def evaluate(self, expr: Expr) -> Value:
        match expr:
            case Const():
                return Value(literal(expr.value, expr.dtype), 1, expr.dtype)
            case Var():
                return self.variable(expr)
            case Load():
                return self.load(expr)
            case Binary():
                return self.binary(expr)
            case Not():
                value = self.evaluate(expr.value)
                ones = literal(True, "bool", value.lanes)
                return self.result(f"xor {value.typed}, {ones}", value.lanes, "bool")
            case Select():
                return self.select(expr)
            case Cast():
                return cast(self.result, self.evaluate(expr.value), expr.dtype)
            case Dot():
                return dot(self, expr, Value(literal(0, expr.dtype), 1, expr.dtype))
            case Call():
                values = self.align([self.evaluate(arg) for arg in expr.args])
                permutes_tables, library = self.subtarget.permutes_tables, self.subtarget.has_library
                return call_instruction(self.result, expr.name, values, expr.dtype, permutes_tables, library)
        raise LoweringError(f"no code for the expression {expr}")

    def variable(self, var: Var) -> Value:
        """The value of a loop variable, a vector of lane numbers for a vector variable."""
        bound = self.env[var]
        if isinstance(bound, int):
            return Value(str(bound), 1, var.dtype)
        if isinstance(bound, Scalar):
            return Value(bound.text, 1, var.dtype)
        base = "0"
        if bound.base is not None:
            outer = self.env[bound.base]
            assert isinstance(outer, Scalar)
            base = outer.text
        if bound.lanes == 1:
            return self.result(f"add i64 {base}, {bound.offset}", 1, INDEX)
        start = self.splat(Value(base, 1, INDEX), bound.lanes)
        steps = ", ".join(f"i64 {bound.offset + lane}" for lane in range(bound.lanes))
        return self.result(f"add {start.typed}, <{steps}>", bound.lanes, INDEX)

    def load(self, expr: Load) -> Value:
        """Read one element, or one vector of elements."""
        buffer, storage = expr.buffer, self.storage[expr.buffer]
        lanes = storage.lanes if storage.lanes > 1 else self.lanes_of(expr.indices)
        if lanes > 1 and self.subtarget.permutes_bytes and is_byte_table(expr):
            return look_up(self.result, storage.pointer, self.evaluate(byte_index(expr)), expr.dtype)
        address = self.locate(buffer, expr.indices)
        if lanes > 1 and storage.lanes == 1 and address.stride != 1:
            return self.gather(expr, address, lanes)
        align = 64 if storage.lanes > 1 else self.alignment(buffer, expr.indices, lanes)
        # Registers have room for the inactive lanes.
        mask = None if buffer.scope == "register" else self.mask_of(lanes)
        loaded = self.writer.loaded.setdefault(buffer.name, {})
        key = (address.pointer, address.offset, lanes, mask)
        if key not in loaded:
            pointer = self.pointer_to(address, buffer)
            kind = memory_type(buffer.dtype, lanes)
            if mask is None:
                value = Value(self.writer.value(f"load {kind}, ptr {pointer}, align {align}"), lanes, buffer.dtype)
                if lanes > 1:
                    self.prefetch(buffer, address, pointer)
            else:
                value = self.masked_read(pointer, buffer.dtype, mask, "zeroinitializer")
            loaded[key] = self.from_memory(value).text
        return Value(loaded[key], lanes, buffer.dtype)

    def gather(self, expr: Load, address: Address, lanes: int) -> Value:
        """Lanes that are not contiguous: a load each, or a load for all."""
        if address.stride == 0:
            pointer = self.pointer_to(address, expr.buffer)
            item = self.result(
                f"load {memory_type(expr.dtype)}, ptr {pointer}, align {item_bytes(expr.dtype)}", 1, expr.dtype
            )
            return self.splat(self.from_memory(item), lanes)
        if not self.can_gather(expr, address):
            return self.by_lane(expr)
        mask = Value("splat (i1 true)", lanes, BOOL) if self.mask is None else self.mask
        return self.gather_items(expr.buffer, expr.indices, mask, "zeroinitializer")

    def can_gather(self, load: Load, address: Address) -> bool:
        """Whether lanes at no constant distance are loaded in one instruction."""
        return address.stride is None and self.subtarget.permutes_tables and load.dtype in _GATHERED

    def by_lane(self, expr: Expr) -> Value:
        """A vector of one scalar evaluation a lane."""
        items = [single.evaluate(expr).text for single in self.each_lane()]
        lanes = len(items) if self.mask is None else self.mask.lanes
        kind = llvm_type(expr.dtype, lanes)
        # Inactive lanes are zeros: they may reach a division, where poison is undefined behavior.
        text = "poison" if self.mask is None else "zeroinitializer"
        for lane, item in enumerate(items):
            text = self.writer.value(f"insertelement {kind} {text}, {llvm_type(expr.dtype)} {item}, i64 {lane}")
        return Value(text, lanes, expr.dtype)

    def binary(self, expr: Binary) -> Value:
        if expr.dtype == INDEX and self._is_of_sizes(expr):
            return self._at_start(expr)
        if expr.op is BinaryOp.ADD and isinstance(expr.rhs, Dot):
            return dot(self, expr.rhs, self.evaluate(expr.lhs))
        if expr.op is BinaryOp.ADD and expr.dtype in ("float32", "float64"):
            for product, addend in ((expr.rhs, expr.lhs), (expr.lhs, expr.rhs)):
                if isinstance(product, Binary) and product.op is BinaryOp.MUL:
                    parts = (product.lhs, product.rhs, addend)
                    a, b, c = self.align([self.evaluate(part) for part in parts])
                    # One instruction where the target has it, else two; never a call.
                    return VectorBuilder(self.result, a.lanes, expr.dtype).call("fmuladd", a, b, c)
        lhs, rhs = self.align([self.evaluate(expr.lhs), self.evaluate(expr.rhs)])
        is_number = isinstance(expr.rhs, Cast) and not is_float(expr.rhs.value.dtype)
        return arithmetic(self.result, expr.op, lhs, rhs, self.subtarget.has_library, is_number)

    def _is_of_sizes(self, expr: Expr) -> bool:
        """Whether an index depends on nothing but sizes, which are known where the function starts."""
        bindings = [self.env.get(var) for var in self.memo(_variables, expr)]
        return bool(bindings) and all(isinstance(bound, Scalar) and bound.is_size for bound in bindings)

    def _at_start(self, expr: Binary) -> Value:
        """An operation on sizes, written once, at the start of the function: integer arithmetic never traps."""
        key, known = ("sizes", expr), self.writer.scopes[0].known
        if key not in known:
            start = self.replace(writer=self.writer.at_scope(0))
            known[key] = arithmetic(start.result, expr.op, start.evaluate(expr.lhs), start.evaluate(expr.rhs)).text
        return Value(known[key], 1, INDEX)

    def select(self, expr: Select) -> Value:
        """A lazy choice: a load from either of two addresses, a branch for all lanes, a masked load, or, where neither
        side reads additional memory, a plain select.
        """
        condition = holds(self, expr.condition)
        if isinstance(condition, bool):
            return self.evaluate(expr.then if condition else expr.otherwise)
        if self.memo(_is_eager, expr):
            then, otherwise = self.align([self.evaluate(expr.then), self.evaluate(expr.otherwise)])
            lanes = max(condition.lanes, then.lanes)
            then, otherwise = self.splat(then, lanes), self.splat(otherwise, lanes)
            return self.result(f"select {condition.typed}, {then.typed}, {otherwise.typed}", lanes, expr.dtype)
        loaded = self.load_or_literal(condition, expr)
        if loaded is not None:
            return loaded
        return self.branch(condition, expr) if condition.lanes == 1 else self.by_lane(expr)

    def branch(self, condition: Value, expr: Select) -> Value:
        writer = self.writer
        name = writer.fresh("sel")[1:]
        lanes = max(self.lanes_in(expr.then), self.lanes_in(expr.otherwise))
        ends = []
        writer.put(f"br i1 {condition.text}, label %{name}.then, label %{name}.else")
        for label, side in (("then", expr.then), ("else", expr.otherwise)):
            writer.start_block(f"{name}.{label}")
            value = self.splat(self.evaluate(side), lanes)
            ends.append((value.text, writer.label))
            writer.put(f"br label %{name}.end")
        writer.start_block(f"{name}.end")
        (then, then_label), (otherwise, else_label) = ends
        kind = llvm_type(expr.dtype, lanes)
        return self.result(f"phi {kind} [ {then}, %{then_label} ], [ {otherwise}, %{else_label} ]", lanes, expr.dtype)

    def load_or_literal(self, condition: Value, expr: Select) -> Value | None:
        """A choice between an element and a literal, or between a vector of elements and another, without a branch:
        earlier values stay valid. Lanes that are off are never read.
        """
        if condition.lanes > 1:
            # Without AVX-512 each mask of two sides may become a branch for every lane.
            is_short = isinstance(expr.otherwise, Const) or self.subtarget.permutes_tables
            return self.masked_sides(condition, expr) if is_short and self.memo(_are_elements, expr) else None
        sides = self.memo(_load_and_literal, expr)
        if sides is None:
            return None
        load, number = sides
        buffer, dtype = load.buffer, load.dtype
        address = self.locate(buffer, load.indices)
        if self.storage[buffer].lanes > 1 or address.stride not in (0, 1):
            return None
        # The same for all lanes: a load from the real address or from memory with the literal.
        lanes = self.lanes_of(load.indices) if address.stride == 1 else 1
        spare = self.fallback(dtype, lanes, literal(number, dtype, lanes))
        chosen = f"select {condition.typed}, ptr {self.pointer_to(address, buffer)}, ptr {spare}"
        pointer = self.writer.value(chosen)
        mask = self.mask_of(lanes)
        if mask is not None:
            return self.masked_read(pointer, dtype, mask, "zeroinitializer")
        return self.result(f"load {memory_type(dtype, lanes)}, ptr {pointer}, align {item_bytes(dtype)}", lanes, dtype)

    def masked_sides(self, condition: Value, expr: Select) -> Value | None:
        """A choice of each lane, whose sides are loaded under masks; None if lanes of a side are loaded one by one."""
        lanes, outer = condition.lanes, self.mask_of(condition.lanes)
        inverse = self.result(f"xor {condition.typed}, splat (i1 true)", lanes, BOOL)
        value = ""
        for side, mask in ((expr.otherwise, inverse), (expr.then, condition)):
            if isinstance(side, Const):
                value = literal(side.value, expr.dtype, lanes)
                continue
            assert isinstance(side, Load)
            address = self.locate(side.buffer, side.indices)
            if self.storage[side.buffer].lanes > 1 or not (address.stride == 1 or self.can_gather(side, address)):
                return None
            if outer is not None:
                mask = self.result(f"and {mask.typed}, {outer.text}", lanes, BOOL)
            if address.stride is None:
                value = self.gather_items(side.buffer, side.indices, mask, value or "zeroinitializer").text
            else:
                pointer = self.pointer_to(address, side.buffer)
                value = self.masked_read(pointer, side.dtype, mask, value or "zeroinitializer").text
        return Value(value, lanes, expr.dtype)


def _are_elements(choice: Select) -> bool:
    """Whether the first side of a choice is an element, and the other one, too, or a literal; with addresses that are
    safe to compute for all lanes: an index that itself reads memory, other than what the choice reads in any case,
    could fault.
    """
    sides = (choice.then, choice.otherwise)
    if not isinstance(choice.then, Load) or not isinstance(choice.otherwise, (Load, Const)):
        return False
    indices = [index for side in sides if isinstance(side, Load) for index in side.indices]
    lazy = {node for index in indices for node in parts(index) if _may_fault(node)}
    return not has_memory_form(choice.dtype) and _read_always(choice).issuperset(lazy)


def _variables(index: Expr) -> set[Var]:
    """The variables of an index, none of one that is more than their arithmetic."""
    nodes = list(parts(index))
    return set(of_type(Var, nodes)) if all(isinstance(node, Const | Var | Binary) for node in nodes) else set()


def _load_and_literal(choice: Select) -> tuple[Load, float] | None:
    """The sides of a choice between an element and a literal, if the element's address is safe to compute for all
    lanes: an index that itself reads memory could fault.
    """
    load, number = choice.then, choice.otherwise
    if not isinstance(load, Load) or not isinstance(number, Const) or has_memory_form(load.dtype):
        return None
    return None if any(_may_fault(node) for index in load.indices for node in parts(index)) else (load, number.value)


def _is_eager(choice: Select) -> bool:
    """Whether both sides of a choice may be evaluated: they read nothing that is not read anyway."""
    # Only loads can fault: arithmetic is defined for all operands, so it may be evaluated speculatively.
    lazy = [node for side in (choice.then, choice.otherwise) for node in parts(side) if _may_fault(node)]
    return not lazy or _read_always(choice).issuperset(lazy)


def _may_fault(node: Expr) -> bool:
    """Whether evaluating a node where its value is not needed could end the process."""
    return isinstance(node, Load) and node.buffer.scope != "register"


def _read_always(choice: Select) -> set[Expr]:
    """The loads that a choice makes whichever side it takes: those of its condition and those of both sides."""
    condition, then, otherwise = map(_unconditional, (choice.condition, choice.then, choice.otherwise))
    return {*condition, *({*then} & {*otherwise})}


def _unconditional(expr: Expr) -> Iterator[Load]:
    """The loads that evaluating an expression makes, whatever its own choices."""
    return of_type(Load, parts(expr, lambda node: (node.condition,) if isinstance(node, Select) else children(node)))
