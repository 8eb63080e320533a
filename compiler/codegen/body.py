"""Emits the LLVM function of one statement of a kernel's loop IR.

Vectors are explicit, unrolled loops use literals, and accumulators stay where LLVM can keep them in registers.
"""

from retune.compiler.codegen.conditions import holds
from retune.compiler.codegen.expressions import ExpressionEmitter
from retune.compiler.codegen.types import intrinsic_suffix, item_bytes, memory_type
from retune.compiler.codegen.values import Ramp, Scalar, Storage
from retune.compiler.codegen.vector_loops import is_roomy, plan_vector_loop
from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import INDEX, Buffer, Load, Var, dim_expr
from retune.compiler.ir.stmt import (
    MOST_ITERATIONS,
    Allocate,
    Block,
    For,
    If,
    Invoke,
    Let,
    LoopKind,
    Stmt,
    Store,
    Together,
)


class BodyEmitter(ExpressionEmitter):
    """Writes the body of one top-level statement."""

    def statement(self, stmt: Stmt) -> None:
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
            case Invoke():
                raise LoweringError(f"the function {stmt.function} is called inside a loop")
            case Together():
                raise LoweringError("the threads of a block wait for each other, but a CPU has no blocks of threads")

    def loop(self, loop: For) -> None:
        """A loop of any kind, except an outermost parallel loop."""
        if loop.kind is LoopKind.UNROLL:
            # Unrolled here and not by LLVM: indices become literals at once, which keeps accumulators in registers.
            for value in range(loop.extent):
                self.bind(loop.var, value).statement(loop.body)
        elif loop.kind is LoopKind.VECTOR and self.vector is None:
            self.vector_loop(loop)
        elif isinstance(loop.extent, Dim):
            self.symbolic_loop(loop, self.atom(dim_expr(loop.extent))[0].text)
        else:
            with self.writer.loop("0", str(loop.extent)) as counter:
                self.bind(loop.var, counter).statement(loop.body)

    def symbolic_loop(self, loop: For, extent: str) -> None:
        """A loop of `extent` iterations, which may be 0."""
        name = self.writer.fresh("loop")[1:]
        some = self.writer.once(("some", extent), f"icmp sgt i64 {extent}, 0")
        self.writer.put(f"br i1 {some}, label %{name}.some, label %{name}.end")
        self.writer.start_block(f"{name}.some")
        with self.writer.scope(), self.writer.loop("0", extent) as counter:
            self.bind(loop.var, counter).statement(loop.body)
        self.writer.put(f"br label %{name}.end")
        self.writer.start_block(f"{name}.end")

    def vector_loop(self, loop: For) -> None:
        plan = self.memo(plan_vector_loop, loop, self.subtarget.vector_bytes)
        if plan.iterations:
            base = Var(f"{loop.var.name}.base")
            with self.writer.loop("0", str(plan.iterations)) as count:
                first = f"mul nuw nsw i64 {count.text}, {plan.chunks * plan.lanes}"
                first = self.writer.hoist(count.depth, ("base", count.text), first)
                iteration = self.bind(base, Scalar(first, count.depth))
                for chunk in range(plan.chunks):
                    iteration.bind_lanes(loop.var, Ramp(base, chunk * plan.lanes, plan.lanes)).statement(loop.body)
        for piece in plan.pieces:
            ramp = Ramp(None, piece.offset, piece.lanes)
            self.bind_lanes(loop.var, ramp, piece.mask, piece.active).statement(loop.body)

    def let(self, stmt: Let) -> None:
        """Bind a variable to a computed index."""
        value = self.evaluate(stmt.value)
        if stmt.extent == MOST_ITERATIONS:
            # An origin of a block: no instruction, but loop strength reduction takes half of LLVM's time when it sees
            # the formula in each address.
            value = self.result(f'call i64 asm "", "=r,0"({value.typed})', 1, INDEX)
        with self.writer.scope() as depth:
            self.bind(stmt.var, Scalar(value.text, depth)).statement(stmt.body)

    def guard(self, stmt: If) -> None:
        """Run the body where the condition, the same for all lanes, holds."""
        condition = holds(self, stmt.condition)
        if isinstance(condition, bool):
            if condition:
                self.statement(stmt.body)
            return
        inside = self
        if condition.lanes > 1:
            mask = self.mask_of(condition.lanes)
            if mask is not None:
                condition = self.result(f"and {condition.typed}, {mask.text}", mask.lanes, "bool")
            inside = self.replace(mask=condition, active=None)
            # Reads that all lanes share happen only if some lane needs them.
            any_lane = f"call i1 @llvm.vector.reduce.or.{intrinsic_suffix('bool', condition.lanes)}({condition.typed})"
            condition = self.result(any_lane, 1, "bool")
        name = self.writer.fresh("if")[1:]
        self.writer.put(f"br i1 {condition.text}, label %{name}.then, label %{name}.end")
        self.writer.start_block(f"{name}.then")
        with self.writer.scope():
            inside.statement(stmt.body)
        self.writer.put(f"br label %{name}.end")
        self.writer.start_block(f"{name}.end")

    def allocate(self, stmt: Allocate) -> None:
        """Allocate stack memory, once at the function's entry."""
        buffer, writer = stmt.buffer, self.writer
        ramp = self.ramp()
        lanes = ramp.lanes if ramp is not None and buffer.scope == "register" else 1
        key, known = ("buffer", buffer, lanes), writer.scopes[0].known
        # One value stays in the same slot in all unrolled copies: they run one after another, so their values are never
        # live at the same time.
        if buffer.shape or key not in known:
            size = self.room(buffer, max(1, buffer.size) * lanes)
            known[key] = writer.alloca("buf", f"[{size} x {memory_type(buffer.dtype)}]")
            writer.stack_bytes += size * item_bytes(buffer.dtype)
        self.replace(storage={**self.storage, buffer: Storage(known[key], lanes, stmt)}).statement(stmt.body)

    def room(self, buffer: Buffer, count: int) -> int:  # noqa: ARG002
        """Elements to allocate for a buffer of `count`."""
        return count

    def store(self, stmt: Store) -> None:
        """Write one element, or one vector of elements."""
        value = self.evaluate(stmt.value)
        storage = self.storage[stmt.buffer]
        lanes = self.lanes_of(stmt.indices) if storage.lanes == 1 else storage.lanes
        value = self.splat(value, max(lanes, value.lanes))
        mask = self.mask_of(value.lanes) if storage.lanes == 1 else None
        if mask is not None and stmt.buffer.scope == "register":
            # Without a masked store, which would keep SROA from promoting the alloca to a register. Where nothing reads
            # the lanes past the end of the loop, they need not keep their values, which takes an instruction.
            if self.active is None or not self.memo(is_roomy, storage.scope):
                old = self.evaluate(Load(stmt.buffer, stmt.indices))
                value = self.result(f"select {mask.typed}, {value.typed}, {old.typed}", mask.lanes, old.dtype)
            mask = None
        value = self.to_memory(value, stmt.buffer.dtype)
        address = self.locate(stmt.buffer, stmt.indices)
        size = item_bytes(stmt.buffer.dtype)
        kind = memory_type(stmt.buffer.dtype, value.lanes)
        if mask is not None and address.stride == 1:
            self.masked_write(self.pointer_to(address, stmt.buffer), value, mask)
        elif value.lanes == 1 or address.stride == 1 or storage.lanes > 1:
            wide = stmt.buffer.scope == "register" and storage.lanes > 1
            align = 64 if wide else self.alignment(stmt.buffer, stmt.indices, value.lanes)
            self.writer.put(f"store {kind} {value.text}, ptr {self.pointer_to(address, stmt.buffer)}, align {align}")
        else:
            # All addresses first, then the stores.
            pointers = [
                single.pointer_to(single.locate(stmt.buffer, stmt.indices), stmt.buffer) for single in self.each_lane()
            ]
            for lane, pointer in enumerate(pointers):
                item = self.writer.value(f"extractelement {kind} {value.text}, i32 {lane}")
                self.writer.put(f"store {memory_type(stmt.buffer.dtype)} {item}, ptr {pointer}, align {size}")
        # Loads are reused within a block until the buffer is written; buffers do not overlap, so others stay valid.
        self.writer.loaded.pop(stmt.buffer.name, None)
