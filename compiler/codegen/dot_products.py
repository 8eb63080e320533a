"""Instruction selection of dot products.

The result equals multiplying and adding one after another: exactly for integers, for bfloat16 with the machine's
rounding of the sum (x86 treats subnormal numbers as zero).

Where the machine has an instruction, the factors of a sum are put into a word of four bytes. A factor that is the same
for all lanes is read once and broadcast. A factor with contiguous words, such as a packed weight, is one load. Others
are read step by step and interleaved.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from retune.compiler.codegen.arithmetic import arithmetic
from retune.compiler.codegen.conversions import cast
from retune.compiler.codegen.dot_instructions import DotInstruction
from retune.compiler.codegen.intrinsics import call_instruction
from retune.compiler.codegen.memory_access import MemoryEmitter
from retune.compiler.codegen.types import is_float, item_bytes, literal, llvm_type
from retune.compiler.codegen.values import Ramp, Value
from retune.compiler.ir.dot import BYTES, OTHER_SIGN, Pair, in_order
from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Cast, Const, Dot, Expr, Load, Var
from retune.compiler.ir.visit import walk

WORD = "uint32"
SIGN_BITS = 0x80808080
"""The highest bits of four bytes."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """An instruction with its factors in order; the signedness of factor number `flipped` is flipped."""

    instruction: DotInstruction
    factors: tuple[Expr, Expr]
    flipped: int | None = None


class DotEmitter(MemoryEmitter):
    """Writes dot products. `dots` are the target's instructions, by the types of their factors."""

    def __init__(
        self,
        pointers: dict[Buffer, str],
        vector_bytes: int,
        dots: Mapping[Pair, DotInstruction] | None = None,
        permutes_tables: bool = False,
    ) -> None:
        super().__init__(pointers, vector_bytes, permutes_tables)
        self.dots = dots or {}

    def dot(self, expr: Dot, sums: Value) -> Value:
        """`sums` with the products of `expr` added."""
        lanes = max(self.lanes_in(expr.lhs), self.lanes_in(expr.rhs), sums.lanes)
        sums = self.splat(sums, lanes)
        plan = self.plan(expr)
        if plan is None or lanes % min(plan.instruction.names):
            return self.one_by_one(expr, sums)
        words = [self.words(factor, expr, lanes) for factor in plan.factors]
        if plan.flipped is None:
            return self.issue(plan.instruction, sums, words)
        bits = Value(literal(SIGN_BITS, WORD, lanes), lanes, WORD)
        # Flipping the sign bit adds 128 to every byte of one factor; 128 times the sum of the other is subtracted, once
        # a block.
        key = ("turned", *(word.text for number, word in enumerate(words) if number != plan.flipped))
        words[plan.flipped] = self.result(f"xor {words[plan.flipped].typed}, {bits.text}", lanes, WORD)
        total = self.issue(plan.instruction, sums, words)
        if key not in self.writer.in_block:
            words[plan.flipped] = bits
            zero = Value(literal(0, sums.dtype, lanes), lanes, sums.dtype)
            self.writer.in_block[key] = self.issue(plan.instruction, zero, words).text
        return self.result(f"sub {total.typed}, {self.writer.in_block[key]}", lanes, sums.dtype)

    def plan(self, expr: Dot) -> _Plan | None:
        """How to use an instruction, if any; of two bytes the signedness of the factor in fewer vectors is
        flipped.
        """
        order = in_order(self.dots, expr.lhs.dtype, expr.rhs.dtype)
        if order is not None:
            factors = (expr.lhs, expr.rhs) if order else (expr.rhs, expr.lhs)
            return _Plan(self.dots[factors[0].dtype, factors[1].dtype], factors)
        either = ((expr.lhs, expr.rhs), (expr.rhs, expr.lhs))
        # Flipping the factor in fewer vectors takes fewer instructions.
        for flipped, kept in sorted(either, key=lambda factors: self.lanes_in(factors[0])):
            sign = OTHER_SIGN.get(flipped.dtype, flipped.dtype)
            order = in_order(self.dots, sign, kept.dtype)
            if order is not None:
                pair = (sign, kept.dtype) if order else (kept.dtype, sign)
                return _Plan(self.dots[pair], (flipped, kept) if order else (kept, flipped), 0 if order else 1)
        return None

    def issue(self, instruction: DotInstruction, sums: Value, words: list[Value]) -> Value:
        """The instruction, repeated for all lanes."""
        # The widest form that divides the lanes needs the fewest instructions.
        width = max(width for width in instruction.names if sums.lanes % width == 0)
        count = width * 4 // (1 if instruction.element == "i8" else 2)
        parts = []
        for start in range(0, sums.lanes, width):
            total = self.part(sums, start, width)
            operands = [total.typed]
            for word in words:
                piece = self.part(word, start, width)
                kind = f"<{count} x {instruction.element}>"
                bits = piece.text if piece.text.startswith("%") else f"bitcast ({piece.typed} to {kind})"
                if piece.text.startswith("%"):
                    bits = self.writer.once(("bits", bits, kind), f"bitcast {piece.typed} to {kind}")
                operands.append(f"{kind} {bits}")
            name = instruction.names[width]
            kind = llvm_type(sums.dtype, width)
            parts.append(self.result(f"call {kind} @{name}({', '.join(operands)})", width, sums.dtype))
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.shuffled(low, high, range(2 * low.lanes)) for low, high in pairs]
        return parts[0]

    def part(self, value: Value, start: int, lanes: int) -> Value:
        if lanes == value.lanes or not value.text.startswith("%"):
            return Value(value.text, lanes, value.dtype)
        return self.shuffled(value, value, range(start, start + lanes))

    def shuffled(self, left: Value, right: Value, lanes: "range | list[int]") -> Value:
        """The lanes with the numbers `lanes` of two vectors of equal length, numbered consecutively."""
        order = ", ".join(f"i32 {lane}" for lane in lanes)
        key = ("shuffle", left.text, right.text, order)
        text = self.writer.once(key, f"shufflevector {left.typed}, {right.typed}, <{len(lanes)} x i32> <{order}>")
        return Value(text, len(lanes), left.dtype)

    def words(self, factor: Expr, dot: Dot, lanes: int) -> Value:
        """The values of a factor that each lane sums, as the bytes of one word a lane."""
        match factor:
            case Const():
                low = int(literal(factor.value, factor.dtype)) % (1 << (32 // dot.width))
                word = sum(low << (32 // dot.width * step) for step in range(dot.width))
                return Value(literal(word, WORD, lanes), lanes, WORD)
            case Cast() if factor.dtype in BYTES and factor.value.dtype in BYTES:
                return self.words(factor.value, dot, lanes)
            case Binary(op=BinaryOp.BIT_XOR, rhs=Const()):
                mask = self.words(factor.rhs, dot, lanes)
                value = self.words(factor.lhs, dot, lanes)
                key = ("xor", value.text, mask.text)
                return Value(self.writer.once(key, f"xor {value.typed}, {mask.text}"), lanes, WORD)
        # One word for all lanes, as of an activation that every output channel reads: a load and a broadcast.
        if self.lanes_in(factor) == 1:
            return self.same_words(factor, dot, lanes)
        contiguous = self.neighbors(factor, dot, lanes) if isinstance(factor, Load) else None
        return self.interleaved(factor, dot, lanes) if contiguous is None else contiguous

    def same_words(self, factor: Expr, dot: Dot, lanes: int) -> Value:
        """A factor that does not move with the lanes: its few steps are the lanes of a short vector."""
        # The steps of a word are separate lanes, to which the outer vector loop and its mask do not apply.
        outside = self.vector, self.mask, self.active
        self.vector, self.mask, self.active = dot.var, None, None
        self.env[dot.var] = Ramp(None, 0, dot.width)
        steps = self.splat(self.evaluate(factor), dot.width)
        self.vector, self.mask, self.active = outside
        del self.env[dot.var]
        text = self.writer.once(("word", steps.text), f"bitcast {steps.typed} to {llvm_type(WORD)}")
        return self.splat(Value(text, 1, WORD), lanes)

    def neighbors(self, load: Load, dot: Dot, lanes: int) -> Value | None:
        """Words that are contiguous in memory: one load for all lanes or, where lanes are apart, one each."""
        form = self.form(load.buffer, load.indices)
        moving = {dot.var, self.vector}
        # Steps and lanes must be affine in the address: inside a quotient or remainder words are not contiguous.
        entangled = any(not isinstance(atom, Var) and moving & set(walk(atom)) for atom in form.terms)
        if form.terms.get(dot.var) != 1 or entangled or self.storage[load.buffer].lanes > 1:
            return None
        # At step 0 the word of a lane begins.
        self.env[dot.var] = 0
        address = self.locate(load.buffer, load.indices)
        loaded = self.writer.loaded.setdefault(load.buffer.name, {})
        mask = self.mask_of(lanes)
        key = ("words", address.pointer, address.offset, lanes, mask)
        align = item_bytes(load.dtype)
        if key not in loaded and address.stride == dot.width:
            pointer = self.pointer_to(address, load.buffer)
            if mask is None:
                loaded[key] = self.writer.value(f"load {llvm_type(WORD, lanes)}, ptr {pointer}, align {align}")
            else:
                loaded[key] = self.masked_read(pointer, WORD, mask, "zeroinitializer", align).text
        elif key not in loaded:
            text = "poison"
            kind, scalar = llvm_type(WORD, lanes), llvm_type(WORD)
            pointers = self.each_lane(lambda: self.pointer_to(self.locate(load.buffer, load.indices), load.buffer))
            for lane, pointer in enumerate(pointers):
                item = self.writer.value(f"load {scalar}, ptr {pointer}, align {align}")
                text = self.writer.value(f"insertelement {kind} {text}, {scalar} {item}, i64 {lane}")
            loaded[key] = text
        del self.env[dot.var]
        return Value(loaded[key], lanes, WORD)

    def interleaved(self, factor: Expr, dot: Dot, lanes: int) -> Value:
        """A vector a step, interleaved so that the steps of each lane are adjacent."""
        steps = []
        for step in range(dot.width):
            self.env[dot.var] = step
            steps.append(self.splat(self.evaluate(factor), lanes))
        del self.env[dot.var]
        joined = steps
        while len(joined) > 1:
            pairs = zip(joined[::2], joined[1::2], strict=True)
            joined = [self.shuffled(low, high, range(2 * low.lanes)) for low, high in pairs]
        order = [step * lanes + lane for lane in range(lanes) for step in range(dot.width)]
        mixed = self.shuffled(joined[0], joined[0], order)
        text = self.writer.once(("word", mixed.text), f"bitcast {mixed.typed} to {llvm_type(WORD, lanes)}")
        return Value(text, lanes, WORD)

    def one_by_one(self, expr: Dot, sums: Value) -> Value:
        """The products one after another, without an instruction for them."""
        for step in range(expr.width):
            self.env[expr.var] = step
            factors = [cast(self.result, self.evaluate(factor), expr.dtype) for factor in (expr.lhs, expr.rhs)]
            lhs, rhs = (self.splat(factor, sums.lanes) for factor in factors)
            if is_float(expr.dtype):
                sums = call_instruction(self.result, "fma", [lhs, rhs, sums], expr.dtype)
            else:
                product = arithmetic(self.result, BinaryOp.MUL, lhs, rhs)
                sums = arithmetic(self.result, BinaryOp.ADD, sums, product)
        del self.env[expr.var]
        return sums

    def lanes_in(self, expr: Expr) -> int:
        """Lanes of an expression's value."""
        lanes = self.lanes_of((expr,))
        for node in walk(expr):
            if isinstance(node, Load):
                lanes = max(lanes, self.storage[node.buffer].lanes)
        return lanes
