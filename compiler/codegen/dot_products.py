"""Instruction selection of dot products.

The result equals multiplying and adding one after another: exactly for integers, for bfloat16 with the machine's
rounding of the sum (x86 treats subnormal numbers as zero).

Where the machine has an instruction, the factors of a sum are put into a word of four bytes. A factor that is the same
for all lanes is read once and broadcast. A factor with contiguous words, such as a packed weight, is one load. Others
are read step by step and interleaved.
"""

from dataclasses import dataclass, replace

from retune.compiler.codegen.arithmetic import arithmetic
from retune.compiler.codegen.conversions import cast
from retune.compiler.codegen.dot_instructions import DotInstruction
from retune.compiler.codegen.intrinsics import call_instruction
from retune.compiler.codegen.memory_access import MemoryEmitter
from retune.compiler.codegen.types import is_float, item_bytes, literal, llvm_type
from retune.compiler.codegen.values import Ramp, Value
from retune.compiler.ir.dot import BYTES, OTHER_SIGN, WIDENED, in_order
from retune.compiler.ir.expr import Binary, BinaryOp, Cast, Const, Dot, Expr, Load, Var
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


def dot(emitter: MemoryEmitter, expr: Dot, sums: Value) -> Value:
    """`sums` with the products of `expr` added."""
    lanes = max(emitter.lanes_in(expr.lhs), emitter.lanes_in(expr.rhs), sums.lanes)
    sums = emitter.splat(sums, lanes)
    plan = _plan(emitter, expr)
    if plan is None or lanes % min(plan.instruction.names):
        return _one_by_one(emitter, expr, sums)
    words = [_words(emitter, factor, expr, lanes) for factor in plan.factors]
    if plan.flipped is None:
        return _issue(emitter, plan.instruction, sums, words)
    bits = Value(literal(SIGN_BITS, WORD, lanes), lanes, WORD)
    # Flipping the sign bit adds 128 to every byte of one factor; 128 times the sum of the other is subtracted, once
    # a block.
    key = ("turned", *(word.text for number, word in enumerate(words) if number != plan.flipped))
    words[plan.flipped] = emitter.result(f"xor {words[plan.flipped].typed}, {bits.text}", lanes, WORD)
    total = _issue(emitter, plan.instruction, sums, words)
    if key not in emitter.writer.in_block:
        words[plan.flipped] = bits
        zero = Value(literal(0, sums.dtype, lanes), lanes, sums.dtype)
        emitter.writer.in_block[key] = _issue(emitter, plan.instruction, zero, words).text
    return emitter.result(f"sub {total.typed}, {emitter.writer.in_block[key]}", lanes, sums.dtype)


def _plan(emitter: MemoryEmitter, expr: Dot) -> _Plan | None:
    """How to use an instruction, if any; of two bytes the signedness of the factor in fewer vectors is
    flipped.
    """
    order = in_order(emitter.subtarget.dots, expr.lhs.dtype, expr.rhs.dtype)
    if order is not None:
        factors = (expr.lhs, expr.rhs) if order else (expr.rhs, expr.lhs)
        return _Plan(emitter.subtarget.dots[factors[0].dtype, factors[1].dtype], factors)
    either = ((expr.lhs, expr.rhs), (expr.rhs, expr.lhs))
    # Flipping the factor in fewer vectors takes fewer instructions.
    for flipped, kept in sorted(either, key=lambda factors: emitter.lanes_in(factors[0])):
        sign = OTHER_SIGN.get(flipped.dtype, flipped.dtype)
        order = in_order(emitter.subtarget.dots, sign, kept.dtype)
        if order is not None:
            pair = (sign, kept.dtype) if order else (kept.dtype, sign)
            return _Plan(emitter.subtarget.dots[pair], (flipped, kept) if order else (kept, flipped), 0 if order else 1)
    return None


def _issue(emitter: MemoryEmitter, instruction: DotInstruction, sums: Value, words: list[Value]) -> Value:
    """The instruction, repeated for all lanes."""
    # The widest form that divides the lanes needs the fewest instructions.
    width = max(width for width in instruction.names if sums.lanes % width == 0)
    count = width * 4 // (1 if instruction.element == "i8" else 2)
    parts = []
    for start in range(0, sums.lanes, width):
        total = _part(emitter, sums, start, width)
        operands = [total.typed]
        for word in words:
            piece = _part(emitter, word, start, width)
            kind = f"<{count} x {instruction.element}>"
            bits = piece.text if piece.text.startswith("%") else f"bitcast ({piece.typed} to {kind})"
            if piece.text.startswith("%"):
                bits = emitter.writer.once(("bits", bits, kind), f"bitcast {piece.typed} to {kind}")
            operands.append(f"{kind} {bits}")
        parts.append(_call(emitter, instruction, width, operands, sums.dtype))
    return _join(emitter, parts)


def _call(emitter: MemoryEmitter, instruction: DotInstruction, width: int, operands: list[str], dtype: str) -> Value:
    """One instruction on `operands`, the sums first, and the addition where the instruction has none."""
    kind, name = llvm_type(dtype, width), instruction.names[width]
    if instruction.element != "i16":
        return emitter.result(f"call {kind} @{name}({', '.join(operands)})", width, dtype)
    total, *factors = operands
    products = emitter.result(f"call {kind} @{name}({', '.join(factors)})", width, dtype)
    return emitter.result(f"add {total}, {products.text}", width, dtype)


def _join(emitter: MemoryEmitter, parts: list[Value]) -> Value:
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [_shuffle(emitter, low, high, range(2 * low.lanes)) for low, high in pairs]
    return parts[0]


def _part(emitter: MemoryEmitter, value: Value, start: int, lanes: int) -> Value:
    if lanes == value.lanes or not value.text.startswith("%"):
        return Value(value.text, lanes, value.dtype)
    return _shuffle(emitter, value, value, range(start, start + lanes))


def _shuffle(emitter: MemoryEmitter, left: Value, right: Value, lanes: "range | list[int]") -> Value:
    """The lanes with the numbers `lanes` of two vectors of equal length, numbered consecutively."""
    order = ", ".join(f"i32 {lane}" for lane in lanes)
    key = ("shuffle", left.text, right.text, order)
    text = emitter.writer.once(key, f"shufflevector {left.typed}, {right.typed}, <{len(lanes)} x i32> <{order}>")
    return Value(text, len(lanes), left.dtype)


def _words(emitter: MemoryEmitter, factor: Expr, dot: Dot, lanes: int) -> Value:
    """The values of a factor that each lane sums, as the bytes of one word a lane."""
    match factor:
        case Cast(value=Const() as number) if factor.dtype == WIDENED:
            return _words(emitter, replace(number, dtype=WIDENED), dot, lanes)
        case Const():
            bits = 8 * item_bytes(factor.dtype)
            low = int(literal(factor.value, factor.dtype)) % (1 << bits)
            word = sum(low << (bits * step) for step in range(dot.width))
            return Value(literal(word, WORD, lanes), lanes, WORD)
        case Cast() if factor.dtype in BYTES and factor.value.dtype in BYTES:
            return _words(emitter, factor.value, dot, lanes)
        case Cast(value=byte) if factor.dtype == WIDENED and byte.dtype in BYTES and emitter.lanes_in(factor) > 1:
            return _widen(emitter, _words(emitter, byte, dot, lanes), byte.dtype)
        case Binary(op=BinaryOp.BIT_XOR, rhs=Const()):
            mask = _words(emitter, factor.rhs, dot, lanes)
            value = _words(emitter, factor.lhs, dot, lanes)
            key = ("xor", value.text, mask.text)
            return Value(emitter.writer.once(key, f"xor {value.typed}, {mask.text}"), lanes, WORD)
    # One word for all lanes, as of an activation that every output channel reads: a load and a broadcast.
    if emitter.lanes_in(factor) == 1:
        return _same_words(emitter, factor, dot, lanes)
    contiguous = _neighbors(emitter, factor, dot, lanes) if isinstance(factor, Load) else None
    return _interleave(emitter, factor, dot, lanes) if contiguous is None else contiguous


def _widen(emitter: MemoryEmitter, words: Value, dtype: str) -> Value:
    """Two bytes of the type `dtype` a lane as words of two numbers of 16 bits."""
    lanes, once = 2 * words.lanes, emitter.writer.once
    bits = once(("bytes", words.typed), f"bitcast {words.typed} to {llvm_type('uint8', lanes)}")
    extend, kind = "zext" if dtype == "uint8" else "sext", llvm_type(WIDENED, lanes)
    wide = once((extend, bits), f"{extend} {llvm_type('uint8', lanes)} {bits} to {kind}")
    text = once(("word", wide), f"bitcast {kind} {wide} to {llvm_type(WORD, words.lanes)}")
    return Value(text, words.lanes, WORD)


def _same_words(emitter: MemoryEmitter, factor: Expr, dot: Dot, lanes: int) -> Value:
    """A factor that does not move with the lanes: its few steps are the lanes of a short vector."""
    # The steps of a word are separate lanes, to which the outer vector loop and its mask do not apply.
    inside = emitter.bind_lanes(dot.var, Ramp(None, 0, dot.width))
    steps = emitter.splat(inside.evaluate(factor), dot.width)
    text = emitter.writer.once(("word", steps.text), f"bitcast {steps.typed} to {llvm_type(WORD)}")
    return emitter.splat(Value(text, 1, WORD), lanes)


def _neighbors(emitter: MemoryEmitter, load: Load, dot: Dot, lanes: int) -> Value | None:
    """Words that are contiguous in memory: one load for all lanes or, where lanes are apart, a load each."""
    form = emitter.form(load.buffer, load.indices)
    moving = {dot.var, emitter.vector}
    # Steps and lanes must be affine in the address: inside a quotient or remainder words are not contiguous.
    entangled = any(not isinstance(atom, Var) and moving & set(walk(atom)) for atom in form.terms)
    if form.terms.get(dot.var) != 1 or entangled or emitter.storage[load.buffer].lanes > 1:
        return None
    word = _word_type(load, dot)
    # At step 0 the word of a lane begins.
    first = emitter.bind(dot.var, 0)
    address = first.locate(load.buffer, load.indices)
    loaded = emitter.writer.loaded.setdefault(load.buffer.name, {})
    mask = emitter.mask_of(lanes)
    key = ("words", address.pointer, address.offset, lanes, mask)
    align = item_bytes(load.dtype)
    if key not in loaded and address.stride == dot.width:
        pointer = emitter.pointer_to(address, load.buffer)
        if mask is None:
            loaded[key] = emitter.writer.value(f"load {llvm_type(word, lanes)}, ptr {pointer}, align {align}")
            emitter.prefetch(load.buffer, address, pointer)
        else:
            loaded[key] = emitter.masked_read(pointer, word, mask, "zeroinitializer", align).text
    elif key not in loaded:
        text = "poison"
        kind, scalar = llvm_type(word, lanes), llvm_type(word)
        places = first.each_lane()
        pointers = [place.pointer_to(place.locate(load.buffer, load.indices), load.buffer) for place in places]
        for lane, pointer in enumerate(pointers):
            item = emitter.writer.value(f"load {scalar}, ptr {pointer}, align {align}")
            text = emitter.writer.value(f"insertelement {kind} {text}, {scalar} {item}, i64 {lane}")
        loaded[key] = text
    return Value(loaded[key], lanes, word)


def _interleave(emitter: MemoryEmitter, factor: Expr, dot: Dot, lanes: int) -> Value:
    """A vector a step, interleaved so that the steps of each lane are adjacent."""
    joined = [emitter.splat(emitter.bind(dot.var, step).evaluate(factor), lanes) for step in range(dot.width)]
    while len(joined) > 1:
        pairs = zip(joined[::2], joined[1::2], strict=True)
        joined = [_shuffle(emitter, low, high, range(2 * low.lanes)) for low, high in pairs]
    order = [step * lanes + lane for lane in range(lanes) for step in range(dot.width)]
    mixed = _shuffle(emitter, joined[0], joined[0], order)
    word = _word_type(factor, dot)
    text = emitter.writer.once(("word", mixed.text), f"bitcast {mixed.typed} to {llvm_type(word, lanes)}")
    return Value(text, lanes, word)


def _word_type(factor: Expr, dot: Dot) -> str:
    """The type of a lane's steps: a word, or half of one where its bytes are yet to be widened."""
    return WORD if item_bytes(factor.dtype) * dot.width == item_bytes(WORD) else "uint16"


def _one_by_one(emitter: MemoryEmitter, expr: Dot, sums: Value) -> Value:
    """The products one after another, without an instruction for them."""
    for step in range(expr.width):
        inside = emitter.bind(expr.var, step)
        factors = [cast(emitter.result, inside.evaluate(factor), expr.dtype) for factor in (expr.lhs, expr.rhs)]
        lhs, rhs = (emitter.splat(factor, sums.lanes) for factor in factors)
        if is_float(expr.dtype):
            sums = call_instruction(emitter.result, "fma", [lhs, rhs, sums], expr.dtype)
        else:
            product = arithmetic(emitter.result, BinaryOp.MUL, lhs, rhs)
            sums = arithmetic(emitter.result, BinaryOp.ADD, sums, product)
    return sums
