"""Emits the LLVM function of one statement of a kernel's loop IR.

Vectors are explicit, unrolled loops use literals, and accumulators stay where LLVM can keep them in registers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from retune.compiler.codegen.expressions import ExpressionEmitter
from retune.compiler.codegen.types import intrinsic_suffix, item_bytes, memory_type
from retune.compiler.codegen.values import LoopCounter, Ramp, Scalar, Storage, Value
from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import Buffer, Expr, Load, Var
from retune.compiler.ir.stmt import (
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
    exprs_of,
    walk_stmt,
)
from retune.compiler.ir.visit import parts, walk

# Independent vectors overlap the latency of their instructions, and share an increment and a branch.
CHUNKS_PER_ITERATION = 4
"""Vectors that an iteration of a long vector loop handles."""
# 31 of AVX-512's 32 registers of 64 bytes: the last is for an operand.
SMALL_BUFFER_BYTES = 31 * 64
"""Loops over a local buffer up to this size are unrolled, so that it can be in registers."""
MASKED_BYTES = 64
"""Registers at least this wide come with masks (AVX-512), so that a partial vector costs no more than a full vector."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """`lanes` iterations of a vector loop from `offset` on; only the first `active` do anything."""

    offset: int
    lanes: int
    active: int


class BodyEmitter(ExpressionEmitter):
    """Writes the body of one top-level statement. `numbers` number the metadata that align innermost loops."""

    numbers: Iterator[int] | None = None

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
        outside = writer.loops
        counter = self.counters[var] = LoopCounter(name, low, before, tail, len(writer.scopes))
        writer.out.append(counter.carried)
        writer.push_scope()
        self.env[var] = Scalar(name, counter.depth)
        body()
        writer.put(f"br label %{tail}")
        writer.start_block(tail)
        writer.out.append(counter.steps)
        writer.put(f"{name}.next = add nuw nsw i64 {name}, 1")
        # Tested at the end: a loop has at least one iteration, so the entry needs no branch.
        writer.put(f"{name}.more = icmp ult i64 {name}.next, {high}")
        is_innermost = writer.loops == outside
        number = f", !llvm.loop !{next(self.numbers)}" if is_innermost and self.numbers is not None else ""
        writer.put(f"br i1 {name}.more, label %{head}, label %{done}{number}")
        writer.loops += 1
        writer.pop_scope()
        writer.start_block(done)

    def vector_loop(self, loop: For) -> None:
        """A loop over lanes: unrolled when short or when its buffers belong in registers, else by several vectors."""
        lanes = self.native_lanes(loop.body)
        if any(isinstance(inner, For) for inner in walk_stmt(loop.body)):
            # Wide vectors give the inner reduction several independent accumulators.
            lanes *= CHUNKS_PER_ITERATION
        self.vector = loop.var
        vectors = loop.extent // lanes
        per_iteration = 1 if any(isinstance(inner, For) for inner in walk_stmt(loop.body)) else CHUNKS_PER_ITERATION
        # A loop at run time over whole groups of vectors, then straight-line pieces for the remainder.
        iterations = vectors // per_iteration
        start = 0
        if iterations > 1 and not self.wants_literals(loop):
            base = Var(f"{loop.var.name}.base")
            step = per_iteration * lanes

            def iteration() -> None:
                count = self.env[base]
                assert isinstance(count, Scalar)
                base_text = self.writer.hoisted(
                    count.depth, ("base", count.text), f"mul nuw nsw i64 {count.text}, {step}"
                )
                self.env[base] = Scalar(base_text, count.depth)
                for chunk in range(per_iteration):
                    self.env[loop.var] = Ramp(base, chunk * lanes, lanes)
                    self.statement(loop.body)

            self.counted(base, "0", str(iterations), iteration)
            start = iterations * step
        for piece in self.pieces(loop, start, lanes):
            self.env[loop.var] = Ramp(None, piece.offset, piece.lanes)
            if piece.active < piece.lanes:
                bits = ", ".join(f"i1 {lane < piece.active:d}" for lane in range(piece.lanes))
                self.mask, self.active = Value(f"<{bits}>", piece.lanes, "bool"), piece.active
            self.statement(loop.body)
            self.mask = self.active = None
        self.vector = None

    def pieces(self, loop: For, start: int, lanes: int) -> list[_Piece]:
        """A vector loop from `start` on: full registers, then the remainder, under a mask or as powers of two."""
        pieces = []
        native = self.native_lanes(loop.body)
        while start < loop.extent:
            remainder = loop.extent - start
            below, above = 1 << (remainder.bit_length() - 1), 1 << remainder.bit_length()
            # Within one register a mask saves a piece; of several registers most lanes should be active.
            is_worth_a_mask = below < remainder and above <= lanes and (above <= native or 4 * remainder >= 3 * above)
            if is_worth_a_mask and self.maskable(loop, start + above):
                pieces.append(_Piece(start, above, remainder))
                break
            lanes = min(lanes, below)
            pieces.append(_Piece(start, lanes, lanes))
            start += lanes
        return pieces

    def maskable(self, loop: For, end: int) -> bool:
        """Whether lanes up to `end` can run under a mask: the target has masks, and registers have room for them."""
        if self.vector_bytes < MASKED_BYTES:
            return False
        for buffer, indices in _accesses(loop.body):
            if buffer.scope == "local" and any(node == loop.var for index in indices for node in walk(index)):
                return False
            # Loads from registers are not masked (see `load`): their array must reach to the last lane.
            if buffer.scope == "register" and buffer.shape and (indices[-1] != loop.var or buffer.shape[-1] < end):
                return False
        return True

    def native_lanes(self, body: Stmt) -> int:
        """Lanes of a register of the widest type stored, or loaded from register buffers; computed once a loop."""
        if id(body) not in self.natives:
            self.natives[id(body)] = (self._native_lanes(body), body)
        return self.natives[id(body)][0]

    def _native_lanes(self, body: Stmt) -> int:
        buffers = {stmt.buffer for stmt in walk_stmt(body) if isinstance(stmt, Store)}
        for stmt in walk_stmt(body):
            loads = (node for expr in exprs_of(stmt) for node in parts(expr) if isinstance(node, Load))
            buffers |= {load.buffer for load in loads if load.buffer.scope == "register"}
        # The widest type decides: each of its vectors is one register, and narrower types fill a part of theirs.
        return max(1, self.vector_bytes // max(item_bytes(buffer.dtype) for buffer in buffers))

    def wants_literals(self, loop: For) -> bool:
        """Whether the loop moves through a buffer that should be in registers."""
        for buffer, indices in _accesses(loop.body):
            # One element that all lanes read needs no literal: the loop may be long.
            small = buffer.scope == "local" and buffer.nbytes <= SMALL_BUFFER_BYTES
            small = small and any(node == loop.var for index in indices for node in walk(index))
            # LLVM's SROA splits an array into registers only where every index into it is a literal.
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
        outer = self.mask, self.active
        if condition.lanes > 1:
            mask = self.mask_of(condition.lanes)
            if mask is not None:
                condition = self.result(f"and {condition.typed}, {mask.text}", mask.lanes, "bool")
            self.mask, self.active = condition, None
            # Reads that all lanes share happen only if some lane needs them.
            any_lane = f"call i1 @llvm.vector.reduce.or.{intrinsic_suffix('bool', condition.lanes)}({condition.typed})"
            condition = self.result(any_lane, 1, "bool")
        name = self.writer.fresh("if")[1:]
        self.writer.put(f"br i1 {condition.text}, label %{name}.then, label %{name}.end")
        self.writer.start_block(f"{name}.then")
        self.writer.push_scope()
        self.statement(stmt.body)
        self.writer.pop_scope()
        self.writer.put(f"br label %{name}.end")
        self.writer.start_block(f"{name}.end")
        self.mask, self.active = outer

    def allocate(self, stmt: Allocate) -> None:
        """Allocate stack memory, once at the function's entry."""
        buffer = stmt.buffer
        ramp = self.env.get(self.vector) if self.vector is not None else None
        lanes = ramp.lanes if isinstance(ramp, Ramp) and buffer.scope == "register" else 1
        key = (buffer, lanes)
        if not buffer.shape and key in self.temporaries:  # one value stays in the same slot in all unrolled copies
            # Copies of an unrolled body run one after another, so their values are never live at the same time.
            self.storage[buffer] = Storage(self.temporaries[key], lanes)
            self.statement(stmt.body)
            return
        size = self.room(buffer, max(1, buffer.size) * lanes)
        pointer = self.temporaries[key] = self.writer.fresh("buf")
        # In the entry block LLVM gives an alloca a fixed frame slot; inside a loop it would grow the stack each time.
        self.writer.entry.append(f"  {pointer} = alloca [{size} x {memory_type(buffer.dtype)}], align 64")
        self.storage[buffer] = Storage(pointer, lanes, _is_roomy(buffer, stmt.body))
        self.stack_bytes += size * item_bytes(buffer.dtype)
        self.statement(stmt.body)

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
            if self.active is None or not storage.is_roomy:
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
            for lane, scalar in enumerate(
                self.each_lane(lambda: self.pointer_to(self.locate(stmt.buffer, stmt.indices), stmt.buffer))
            ):
                item = self.writer.value(f"extractelement {kind} {value.text}, i32 {lane}")
                self.writer.put(f"store {memory_type(stmt.buffer.dtype)} {item}, ptr {scalar}, align {size}")
        # Loads are reused within a block until the buffer is written; buffers do not overlap, so others stay valid.
        self.writer.loaded.pop(stmt.buffer.name, None)


def _is_roomy(buffer: Buffer, body: Stmt) -> bool:
    """Whether all loops along the rows of registers have the same extent, so that none reads past another's end."""
    if buffer.scope != "register" or not buffer.shape:
        return False
    last = [indices[-1] for accessed, indices in _accesses(body) if accessed == buffer]
    loops = [stmt for stmt in walk_stmt(body) if isinstance(stmt, For) and stmt.var in last]
    return len({loop.extent for loop in loops}) == 1 and {loop.var for loop in loops} >= {*last}


def _accesses(body: Stmt) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """Every element that is read or written."""
    for stmt in walk_stmt(body):
        for expr in exprs_of(stmt):
            for node in parts(expr):
                if isinstance(node, Load):
                    yield node.buffer, node.indices
        if isinstance(stmt, Store):
            yield stmt.buffer, stmt.indices
