"""In: one statement of a kernel's loop IR. Out: the LLVM function that runs it.

Always: explicit vectors, unrolled loops as literals, addresses hoisted to the loop that owns them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.codegen.intrinsics import call_instruction
from compiler.codegen.types import is_float, is_unsigned, item_bytes, literal, llvm_type, memory_type
from compiler.codegen.writer import FunctionWriter
from compiler.errors import LoweringError
from compiler.ir.affine import Affine, flat_index
from compiler.ir.expr import (
    COMPARISONS,
    INDEX,
    LOGICAL,
    Binary,
    BinaryOp,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
    Var,
)
from compiler.ir.stmt import Allocate, Block, For, If, Let, LoopKind, Stmt, Store, exprs_of, walk_stmt
from compiler.ir.visit import walk

CHUNKS_PER_TURN = 4
"""A long vector loop handles this many vectors a turn."""
SMALL_BUFFER_BYTES = 4096
"""Loops over a local buffer up to this size are written out, so that it can live in registers."""


@dataclass(frozen=True, slots=True)
class Value:
    """A result in a register: its name or literal, lanes and type."""

    text: str
    lanes: int
    dtype: str

    @property
    def typed(self) -> str:
        """The operand with its LLVM type."""
        return f"{llvm_type(self.dtype, self.lanes)} {self.text}"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A loop variable in a register, known from scope `depth` inwards."""

    text: str
    depth: int


@dataclass(frozen=True, slots=True)
class Ramp:
    """A vector variable: lane n holds `base + offset + n`."""

    base: Var | None
    offset: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a buffer lives. `lanes` > 1 when every element is a vector: an accumulator inside a vector loop."""

    pointer: str
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """An address: a pointer, a constant offset in elements, and the distance between lanes (None: `lanes` are not at a
    constant distance).
    """

    pointer: str
    offset: int
    stride: int | None


class BodyEmitter:
    """Writes the body of one top-level statement; `pointers` are the buffers' base addresses, `vector_bytes` the
    register width.
    """

    def __init__(self, pointers: dict[Buffer, str], vector_bytes: int) -> None:
        self.writer = FunctionWriter()
        self.vector_bytes = vector_bytes
        self.storage = {buffer: Storage(pointer) for buffer, pointer in pointers.items()}
        self.env: dict[Var, int | Scalar | Ramp] = {}
        self.vector: Var | None = None
        self.stack_bytes = 0
        # Both are keyed by identity, which is safe because the tuples are kept alive beside the answers.
        self.forms: dict[tuple[int, tuple[int, ...]], tuple[Affine, tuple[Expr, ...]]] = {}
        self.moves: dict[tuple[int, Var | None], tuple[bool, tuple[Expr, ...]]] = {}

    # ---------------------------------------------------------------- statements

    def statement(self, stmt: Stmt) -> None:
        """Write one statement."""
        match stmt:
            case Block():
                for inner in stmt.statements:
                    self.statement(inner)
            case For():
                self.loop(stmt)
            case Let():
                self.let(stmt)
            case If():
                self.guard(stmt)
            case Store():
                self.store(stmt)
            case Allocate():
                self.allocate(stmt)

    def loop(self, loop: For) -> None:
        """A loop of any kind but an outermost parallel one."""
        if loop.kind is LoopKind.UNROLL:
            for value in range(loop.extent):
                self.env[loop.var] = value
                self.statement(loop.body)
        elif loop.kind is LoopKind.VECTOR and self.vector is None:
            self.vector_loop(loop)
        else:
            self.counted(loop.var, "0", str(loop.extent), lambda: self.statement(loop.body))

    def counted(self, var: Var, low: str, high: str, body: Callable[[], None]) -> None:
        """A loop at run time from `low` to `high`, which is larger."""
        writer = self.writer
        name = writer.fresh("i")
        head, tail, done = f"head{name[1:]}", f"tail{name[1:]}", f"done{name[1:]}"
        before = writer.label
        writer.put(f"br label %{head}")
        writer.start_block(head)
        writer.put(f"{name} = phi i64 [ {low}, %{before} ], [ {name}.next, %{tail} ]")
        writer.push_scope()
        self.env[var] = Scalar(name, len(writer.scopes) - 1)
        body()
        writer.put(f"br label %{tail}")
        writer.start_block(tail)
        writer.put(f"{name}.next = add nuw nsw i64 {name}, 1")
        writer.put(f"{name}.more = icmp ult i64 {name}.next, {high}")
        writer.put(f"br i1 {name}.more, label %{head}, label %{done}")
        writer.pop_scope()
        writer.start_block(done)

    def vector_loop(self, loop: For) -> None:
        """A loop over lanes: written out when it is short or its buffers are to live in registers, else several
        vectors a turn.
        """
        lanes = self.native_lanes(loop.body)
        if any(isinstance(inner, For) for inner in walk_stmt(loop.body)):
            # Wide vectors give the reduction inside several independent accumulators.
            lanes *= CHUNKS_PER_TURN
        self.vector = loop.var
        whole = loop.extent // lanes
        per_turn = 1 if any(isinstance(inner, For) for inner in walk_stmt(loop.body)) else CHUNKS_PER_TURN
        turns = whole // per_turn
        start = 0
        if turns > 1 and not self.wants_literals(loop):
            base = Var(f"{loop.var.name}.base")
            step = per_turn * lanes

            def turn() -> None:
                count = self.env[base]
                assert isinstance(count, Scalar)
                at = self.writer.hoisted(count.depth, ("base", count.text), f"mul nuw nsw i64 {count.text}, {step}")
                self.env[base] = Scalar(at, count.depth)
                for chunk in range(per_turn):
                    self.env[loop.var] = Ramp(base, chunk * lanes, lanes)
                    self.statement(loop.body)

            self.counted(base, "0", str(turns), turn)
            start = turns * step
        for offset, count in _chunks(start, loop.extent, lanes):
            self.env[loop.var] = Ramp(None, offset, count)
            self.statement(loop.body)
        self.vector = None

    def native_lanes(self, body: Stmt) -> int:
        """Lanes of one register, for the widest type that is stored."""
        widest = max(item_bytes(stmt.buffer.dtype) for stmt in walk_stmt(body) if isinstance(stmt, Store))
        return max(1, self.vector_bytes // widest)

    def wants_literals(self, loop: For) -> bool:
        """Whether the loop moves through a buffer that should live in registers."""
        for stmt in walk_stmt(loop.body):
            touched = [node.buffer for expr in exprs_of(stmt) for node in walk(expr) if isinstance(node, Load)]
            if isinstance(stmt, Store):
                touched.append(stmt.buffer)
            for buffer in touched:
                small = buffer.scope == "local" and buffer.nbytes <= SMALL_BUFFER_BYTES
                if (buffer.scope == "register" and buffer.shape) or small:
                    return True
        return False

    def let(self, stmt: Let) -> None:
        """Bind a variable to a computed index."""
        value = self.evaluate(stmt.value)
        self.writer.push_scope()
        self.env[stmt.var] = Scalar(value.text, len(self.writer.scopes) - 1)
        self.statement(stmt.body)
        self.writer.pop_scope()

    def guard(self, stmt: If) -> None:
        """Run the body where the condition, the same for all lanes, holds."""
        condition = self.evaluate(stmt.condition)
        if condition.lanes != 1:
            raise LoweringError(f"the condition {stmt.condition} differs between the lanes of a vector loop")
        name = self.writer.fresh("if")[1:]
        self.writer.put(f"br i1 {condition.text}, label %{name}.then, label %{name}.end")
        self.writer.start_block(f"{name}.then")
        self.writer.push_scope()
        self.statement(stmt.body)
        self.writer.pop_scope()
        self.writer.put(f"br label %{name}.end")
        self.writer.start_block(f"{name}.end")

    def allocate(self, stmt: Allocate) -> None:
        """Room on the stack, made once at the function's entry."""
        buffer = stmt.buffer
        ramp = self.env.get(self.vector) if self.vector is not None else None
        lanes = ramp.lanes if isinstance(ramp, Ramp) and buffer.scope == "register" else 1
        size = max(1, buffer.size) * lanes
        pointer = self.writer.fresh("buf")
        self.writer.entry.append(f"  {pointer} = alloca [{size} x {memory_type(buffer.dtype)}], align 64")
        self.storage[buffer] = Storage(pointer, lanes)
        self.stack_bytes += size * item_bytes(buffer.dtype)
        self.statement(stmt.body)

    def store(self, stmt: Store) -> None:
        """Write one element, or one vector of them."""
        value = self.evaluate(stmt.value)
        storage = self.storage[stmt.buffer]
        lanes = self.lanes_of(stmt.indices) if storage.lanes == 1 else storage.lanes
        value = self.to_memory(self.splat(value, max(lanes, value.lanes)), stmt.buffer.dtype)
        place = self.place(stmt.buffer, stmt.indices)
        size = item_bytes(stmt.buffer.dtype)
        kind = memory_type(stmt.buffer.dtype, value.lanes)
        if value.lanes == 1 or place.stride == 1 or storage.lanes > 1:
            align = 64 if stmt.buffer.scope == "register" and storage.lanes > 1 else size
            self.writer.put(f"store {kind} {value.text}, ptr {self.address(place, stmt.buffer)}, align {align}")
        else:
            for lane, scalar in enumerate(
                self.each_lane(lambda: self.address(self.place(stmt.buffer, stmt.indices), stmt.buffer))
            ):
                item = self.writer.value(f"extractelement {kind} {value.text}, i32 {lane}")
                self.writer.put(f"store {memory_type(stmt.buffer.dtype)} {item}, ptr {scalar}, align {size}")
        self.writer.loaded.pop(stmt.buffer.name, None)

    # ---------------------------------------------------------------- addresses

    def form(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Affine:
        """The flat index, worked out once an access and not once an unrolled copy."""
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
            self.moves[key] = (any(node == self.vector for expr in exprs for node in walk(expr)), exprs)
        return ramp.lanes if self.moves[key][0] else 1

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Place:
        """Where an element lies: literals, then what each outer loop adds, then the lanes."""
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
                if value.lanes > 1:
                    return Place("", 0, None)
                by_depth.setdefault(depth, []).append((value.text, coefficient))
        kind = memory_type(buffer.dtype)
        pointer = storage.pointer
        current = by_depth.pop(-1, [])
        for depth in sorted(by_depth):
            for text, coefficient in sorted(by_depth[depth]):
                if coefficient != 1:
                    text = self.writer.hoisted(depth, ("mul", text, coefficient), f"mul nsw i64 {text}, {coefficient}")
                pointer = self.writer.hoisted(
                    depth, ("gep", kind, pointer, text), f"getelementptr {kind}, ptr {pointer}, i64 {text}"
                )
        for text, coefficient in current:
            scaled = self.writer.value(f"mul i64 {text}, {coefficient}")
            pointer = self.writer.value(f"getelementptr {kind}, ptr {pointer}, i64 {scaled}")
        return Place(pointer, offset * storage.lanes, stride)

    def atom(self, expr: Expr) -> tuple[Value, int]:
        """The value of an index that is not affine, and the scope it belongs to (-1: here and now)."""
        key = ("atom", expr, tuple((node, self.env.get(node)) for node in walk(expr) if isinstance(node, Var)))
        if key in self.writer.in_block:
            return Value(self.writer.in_block[key], 1, INDEX), -1
        value = self.evaluate(expr)
        if value.lanes == 1:
            self.writer.in_block[key] = value.text
        return value, -1

    def address(self, place: Place, buffer: Buffer) -> str:
        """The pointer of a place."""
        if place.offset == 0:
            return place.pointer
        kind = memory_type(buffer.dtype)
        key = ("address", kind, place.pointer, place.offset)
        return self.writer.once(key, f"getelementptr {kind}, ptr {place.pointer}, i64 {place.offset}")

    def each_lane(self, make: Callable[[], str]) -> list[str]:
        """`make` once a lane, with the vector variable standing for that lane alone."""
        assert self.vector is not None
        ramp = self.env[self.vector]
        assert isinstance(ramp, Ramp)
        results = []
        for lane in range(ramp.lanes):
            self.env[self.vector] = Ramp(ramp.base, ramp.offset + lane, 1)
            results.append(make())
        self.env[self.vector] = ramp
        return results

    # ---------------------------------------------------------------- expressions

    def evaluate(self, expr: Expr) -> Value:
        """Write the instructions of an expression."""
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
                return self.cast(self.evaluate(expr.value), expr.dtype)
            case Call():
                values = self.aligned([self.evaluate(arg) for arg in expr.args])
                return call_instruction(self.result, expr.name, values, expr.dtype)
        raise LoweringError(f"no code for the expression {expr}")

    def result(self, instruction: str, lanes: int, dtype: str) -> Value:
        """Append an instruction with a result."""
        return Value(self.writer.value(instruction), lanes, dtype)

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

    def splat(self, value: Value, lanes: int) -> Value:
        """The value in every lane."""
        if value.lanes == lanes:
            return value
        if value.lanes != 1:
            raise LoweringError(f"a vector of {value.lanes} lanes meets one of {lanes}")
        if not value.text.startswith("%"):
            return Value(f"splat ({value.typed})", lanes, value.dtype)
        kind = llvm_type(value.dtype, lanes)
        key = ("splat", value.text, lanes)
        if key not in self.writer.in_block:
            first = self.writer.value(f"insertelement {kind} poison, {value.typed}, i64 0")
            zeros = f"<{lanes} x i32> zeroinitializer"
            self.writer.in_block[key] = self.writer.value(f"shufflevector {kind} {first}, {kind} poison, {zeros}")
        return Value(self.writer.in_block[key], lanes, value.dtype)

    def aligned(self, values: Sequence[Value]) -> list[Value]:
        """The values with the same number of lanes."""
        lanes = max(value.lanes for value in values)
        return [self.splat(value, lanes) for value in values]

    def load(self, expr: Load) -> Value:
        """Read one element, or one vector of them."""
        buffer, storage = expr.buffer, self.storage[expr.buffer]
        lanes = storage.lanes if storage.lanes > 1 else self.lanes_of(expr.indices)
        place = self.place(buffer, expr.indices)
        if lanes > 1 and storage.lanes == 1 and place.stride != 1:
            return self.gather(expr, place, lanes)
        align = 64 if storage.lanes > 1 else item_bytes(buffer.dtype)
        loaded = self.writer.loaded.setdefault(buffer.name, {})
        key = (place.pointer, place.offset, lanes)
        if key not in loaded:
            pointer = self.address(place, buffer)
            kind = memory_type(buffer.dtype, lanes)
            value = Value(self.writer.value(f"load {kind}, ptr {pointer}, align {align}"), lanes, buffer.dtype)
            loaded[key] = self.from_memory(value).text
        return Value(loaded[key], lanes, buffer.dtype)

    def gather(self, expr: Load, place: Place, lanes: int) -> Value:
        """Lanes that do not lie side by side: one load each, or one for all."""
        if place.stride == 0:
            pointer = self.address(place, expr.buffer)
            item = self.result(
                f"load {memory_type(expr.dtype)}, ptr {pointer}, align {item_bytes(expr.dtype)}", 1, expr.dtype
            )
            return self.splat(self.from_memory(item), lanes)
        return self.by_lane(expr)

    def by_lane(self, expr: Expr) -> Value:
        """A vector made of one scalar evaluation a lane."""
        items = self.each_lane(lambda: self.evaluate(expr).text)
        kind = llvm_type(expr.dtype, len(items))
        text = "poison"
        for lane, item in enumerate(items):
            text = self.writer.value(f"insertelement {kind} {text}, {llvm_type(expr.dtype)} {item}, i64 {lane}")
        return Value(text, len(items), expr.dtype)

    def from_memory(self, value: Value) -> Value:
        """A loaded byte as a bool; other types are as they are."""
        if value.dtype != "bool":
            return value
        zero = literal(0, "int8", value.lanes)
        return self.result(f"icmp ne {memory_type('bool', value.lanes)} {value.text}, {zero}", value.lanes, "bool")

    def to_memory(self, value: Value, dtype: str) -> Value:
        """A value as it is stored."""
        value = self.cast(value, dtype)
        if dtype != "bool":
            return value
        return self.result(f"zext {value.typed} to {memory_type('bool', value.lanes)}", value.lanes, "int8")

    def binary(self, expr: Binary) -> Value:
        """Arithmetic, comparison or logic on scalars or vectors."""
        if expr.op is BinaryOp.ADD and is_float(expr.dtype):
            for product, other in ((expr.rhs, expr.lhs), (expr.lhs, expr.rhs)):
                if isinstance(product, Binary) and product.op is BinaryOp.MUL:
                    parts = (product.lhs, product.rhs, other)
                    a, b, c = self.aligned([self.evaluate(part) for part in parts])
                    return call_instruction(self.result, "fma", [a, b, c], expr.dtype)
        lhs, rhs = self.aligned([self.evaluate(expr.lhs), self.evaluate(expr.rhs)])
        kind = f"{llvm_type(lhs.dtype, lhs.lanes)} {lhs.text}, {rhs.text}"
        if expr.op in LOGICAL:
            return self.result(f"{expr.op.value} {kind}", lhs.lanes, "bool")
        if expr.op in COMPARISONS:
            return self.result(f"{_compare(expr.op, lhs.dtype)} {kind}", lhs.lanes, "bool")
        if expr.op in (BinaryOp.MIN, BinaryOp.MAX):
            return self.extreme(expr.op, lhs, rhs)
        if expr.op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD):
            return self.floor_division(expr.op, lhs, rhs)
        name = {BinaryOp.ADD: "add", BinaryOp.SUB: "sub", BinaryOp.MUL: "mul"}.get(expr.op)
        if is_float(lhs.dtype):
            return self.result(f"f{name or 'div'} {kind}", lhs.lanes, lhs.dtype)
        divide = "udiv" if is_unsigned(lhs.dtype) else "sdiv"
        return self.result(f"{name or divide} {kind}", lhs.lanes, lhs.dtype)

    def extreme(self, op: BinaryOp, lhs: Value, rhs: Value) -> Value:
        """The larger or smaller value; a NaN on the left stays."""
        kind = f"{llvm_type(lhs.dtype, lhs.lanes)} {lhs.text}, {rhs.text}"
        if is_float(lhs.dtype):
            compare = "fcmp ugt" if op is BinaryOp.MAX else "fcmp ult"
        else:
            sign = "u" if is_unsigned(lhs.dtype) else "s"
            compare = f"icmp {sign}{'gt' if op is BinaryOp.MAX else 'lt'}"
        chosen = self.result(f"{compare} {kind}", lhs.lanes, "bool")
        return self.result(f"select {chosen.typed}, {lhs.typed}, {rhs.typed}", lhs.lanes, lhs.dtype)

    def floor_division(self, op: BinaryOp, lhs: Value, rhs: Value) -> Value:
        """Quotient or remainder rounded towards minus infinity."""
        dtype, lanes = lhs.dtype, lhs.lanes
        kind = llvm_type(dtype, lanes)
        if is_float(dtype):
            quotient = self.result(f"fdiv {kind} {lhs.text}, {rhs.text}", lanes, dtype)
            floor = call_instruction(self.result, "floor", [quotient], dtype)
            if op is BinaryOp.FLOORDIV:
                return floor
            whole = self.result(f"fmul {floor.typed}, {rhs.text}", lanes, dtype)
            return self.result(f"fsub {kind} {lhs.text}, {whole.text}", lanes, dtype)
        if is_unsigned(dtype):
            name = "udiv" if op is BinaryOp.FLOORDIV else "urem"
            return self.result(f"{name} {kind} {lhs.text}, {rhs.text}", lanes, dtype)
        quotient = self.result(f"sdiv {kind} {lhs.text}, {rhs.text}", lanes, dtype)
        rest = self.result(f"srem {kind} {lhs.text}, {rhs.text}", lanes, dtype)
        zero = literal(0, dtype, lanes)
        nonzero = self.result(f"icmp ne {rest.typed}, {zero}", lanes, "bool")
        mixed = self.result(f"xor {rest.typed}, {rhs.text}", lanes, dtype)
        opposite = self.result(f"icmp slt {mixed.typed}, {zero}", lanes, "bool")
        adjust = self.result(f"and {nonzero.typed}, {opposite.text}", lanes, "bool")
        if op is BinaryOp.FLOORDIV:
            less = self.result(f"sub {quotient.typed}, {literal(1, dtype, lanes)}", lanes, dtype)
            return self.result(f"select {adjust.typed}, {less.typed}, {quotient.typed}", lanes, dtype)
        more = self.result(f"add {rest.typed}, {rhs.text}", lanes, dtype)
        return self.result(f"select {adjust.typed}, {more.typed}, {rest.typed}", lanes, dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """The value in another type, as NumPy's astype does it."""
        source = value.dtype
        if source == dtype:
            return value
        target = llvm_type(dtype, value.lanes)
        if dtype == "bool":
            zero = literal(0, source, value.lanes)
            compare = "fcmp une" if is_float(source) else "icmp ne"
            return self.result(f"{compare} {value.typed}, {zero}", value.lanes, "bool")
        unsigned = is_unsigned(source) or source == "bool"
        if is_float(source) and is_float(dtype):
            wider = item_bytes(dtype) > item_bytes(source)
            name = "fpext" if wider else "fptrunc"
        elif is_float(source):
            name = "fptoui" if is_unsigned(dtype) else "fptosi"
        elif is_float(dtype):
            name = "uitofp" if unsigned else "sitofp"
        elif item_bytes(dtype) == item_bytes(source) and source != "bool":
            return Value(value.text, value.lanes, dtype)
        elif source != "bool" and item_bytes(dtype) < item_bytes(source):
            name = "trunc"
        else:
            name = "zext" if unsigned else "sext"
        return self.result(f"{name} {value.typed} to {target}", value.lanes, dtype)

    def select(self, expr: Select) -> Value:
        """A lazy choice: one branch for all lanes, a masked load, or a plain select where neither side reads memory."""
        condition = self.evaluate(expr.condition)
        reads = any(isinstance(node, Load) for side in (expr.then, expr.otherwise) for node in walk(side))
        if not reads:
            then, otherwise = self.aligned([self.evaluate(expr.then), self.evaluate(expr.otherwise)])
            lanes = max(condition.lanes, then.lanes)
            then, otherwise = self.splat(then, lanes), self.splat(otherwise, lanes)
            return self.result(f"select {condition.typed}, {then.typed}, {otherwise.typed}", lanes, expr.dtype)
        if condition.lanes == 1:
            return self.branch(condition, expr)
        masked = self.masked_load(condition, expr)
        return self.by_lane(expr) if masked is None else masked

    def branch(self, condition: Value, expr: Select) -> Value:
        """Evaluate only the side taken."""
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

    def lanes_in(self, expr: Expr) -> int:
        """Lanes of an expression's value."""
        lanes = self.lanes_of((expr,))
        for node in walk(expr):
            if isinstance(node, Load):
                lanes = max(lanes, self.storage[node.buffer].lanes)
        return lanes

    def masked_load(self, condition: Value, expr: Select) -> Value | None:
        """A contiguous load under a mask, when one side is just that and the other a literal."""
        load, other = expr.then, expr.otherwise
        if not isinstance(load, Load) or not isinstance(other, Const) or load.dtype == "bool":
            return None
        place = self.place(load.buffer, load.indices)
        if place.stride != 1 or self.storage[load.buffer].lanes > 1:
            return None
        lanes = condition.lanes
        kind = llvm_type(expr.dtype, lanes)
        suffix = f"v{lanes}{_suffix(expr.dtype)}.p0"
        passthru = literal(other.value, expr.dtype, lanes)
        pointer = f"ptr align {item_bytes(expr.dtype)} {self.address(place, load.buffer)}"
        return self.result(
            f"call {kind} @llvm.masked.load.{suffix}({pointer}, {condition.typed}, {kind} {passthru})",
            lanes,
            expr.dtype,
        )


def _suffix(dtype: str) -> str:
    return f"{'f' if is_float(dtype) else 'i'}{item_bytes(dtype) * 8}"


def _compare(op: BinaryOp, dtype: str) -> str:
    names = {BinaryOp.EQ: "eq", BinaryOp.NE: "ne", BinaryOp.LT: "lt", BinaryOp.LE: "le"}
    name = names[op]
    if is_float(dtype):
        return f"fcmp {'u' if op is BinaryOp.NE else 'o'}{name}"
    if op in (BinaryOp.EQ, BinaryOp.NE):
        return f"icmp {name}"
    return f"icmp {'u' if is_unsigned(dtype) or dtype == 'bool' else 's'}{name}"


def _chunks(start: int, end: int, lanes: int) -> list[tuple[int, int]]:
    """(offset, lanes) pieces of a vector loop: full registers, then powers of two."""
    pieces = []
    while start < end:
        while lanes > end - start:
            lanes //= 2
        pieces.append((start, lanes))
        start += lanes
    return pieces
