"""In: one statement of a kernel's loop IR. Out: the LLVM function that runs it.

Always: explicit vectors, unrolled loops as literals, accumulators where the compiler can put them in registers.
"""

from collections.abc import Callable

from compiler.codegen.expressions import ExpressionEmitter
from compiler.codegen.types import item_bytes, memory_type
from compiler.codegen.values import Ramp, Scalar, Storage
from compiler.errors import LoweringError
from compiler.ir.expr import Load, Var
from compiler.ir.stmt import Allocate, Block, For, If, Let, LoopKind, Stmt, Store, exprs_of, walk_stmt
from compiler.ir.visit import walk

CHUNKS_PER_TURN = 4
"""A long vector loop handles this many vectors a turn."""
SMALL_BUFFER_BYTES = 31 * 64
"""Loops over a local buffer up to this size are written out, so that it can live in registers."""


class BodyEmitter(ExpressionEmitter):
    """Writes the body of one top-level statement."""

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
            touched = [
                (node.buffer, node.indices) for e in exprs_of(stmt) for node in walk(e) if isinstance(node, Load)
            ]
            if isinstance(stmt, Store):
                touched.append((stmt.buffer, stmt.indices))
            for buffer, indices in touched:
                # One element that all lanes read needs no literal: the loop may be long.
                small = buffer.scope == "local" and buffer.nbytes <= SMALL_BUFFER_BYTES
                small = small and any(node == loop.var for index in indices for node in walk(index))
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
        condition = self.holds(stmt.condition)
        if isinstance(condition, bool):
            if condition:
                self.statement(stmt.body)
            return
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


def _chunks(start: int, end: int, lanes: int) -> list[tuple[int, int]]:
    """(offset, lanes) pieces of a vector loop: full registers, then powers of two."""
    pieces = []
    while start < end:
        while lanes > end - start:
            lanes //= 2
        pieces.append((start, lanes))
        start += lanes
    return pieces
