"""In: operands in registers. Out: the instructions of one operator or cast, scalar or vector.

Always: integer division rounds towards minus infinity; a NaN in a maximum or minimum stays; a shift by more than there
are bits shifts them all out.
"""

from compiler.codegen.intrinsics import call_instruction
from compiler.codegen.types import is_float, is_unsigned, item_bytes, literal, llvm_type
from compiler.codegen.values import Emit, Value
from compiler.ir.operators import BITWISE, COMPARISONS, LOGICAL, SHIFTS, BinaryOp


def arithmetic(emit: Emit, op: BinaryOp, lhs: Value, rhs: Value) -> Value:
    """`lhs op rhs` on values of one type and the same number of lanes."""
    kind = f"{llvm_type(lhs.dtype, lhs.lanes)} {lhs.text}, {rhs.text}"
    if lhs.dtype == "bool" and op in (BinaryOp.ADD, BinaryOp.MUL):
        return emit(f"{'or' if op is BinaryOp.ADD else 'and'} {kind}", lhs.lanes, "bool")
    if op in LOGICAL:
        return emit(f"{op.value} {kind}", lhs.lanes, "bool")
    if op in COMPARISONS:
        return emit(f"{_compare(op, lhs.dtype)} {kind}", lhs.lanes, "bool")
    if op in (BinaryOp.MIN, BinaryOp.MAX):
        return extreme(emit, op, lhs, rhs)
    if op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD):
        return floor_division(emit, op, lhs, rhs)
    if op in SHIFTS:
        return shift(emit, op, lhs, rhs)
    if op in BITWISE:
        return emit(f"{op.value.removeprefix('bit')} {kind}", lhs.lanes, lhs.dtype)
    name = {BinaryOp.ADD: "add", BinaryOp.SUB: "sub", BinaryOp.MUL: "mul"}.get(op)
    if is_float(lhs.dtype):
        return emit(f"f{name or 'div'} {kind}", lhs.lanes, lhs.dtype)
    divide = "udiv" if is_unsigned(lhs.dtype) else "sdiv"
    return emit(f"{name or divide} {kind}", lhs.lanes, lhs.dtype)


def extreme(emit: Emit, op: BinaryOp, lhs: Value, rhs: Value) -> Value:
    """The larger or smaller value; a NaN on either side stays, as NumPy's maximum and minimum have it."""
    if is_float(lhs.dtype) and _literal(lhs):
        lhs, rhs = rhs, lhs
    found = joined_extreme(emit, op, lhs, rhs)
    if not is_float(lhs.dtype) or _literal(rhs):
        return found
    other = emit(f"fcmp uno {rhs.typed}, {rhs.text}", rhs.lanes, "bool")
    return emit(f"select {other.typed}, {rhs.typed}, {found.typed}", lhs.lanes, lhs.dtype)


def joined_extreme(emit: Emit, op: BinaryOp, lhs: Value, rhs: Value) -> Value:
    """The larger or smaller value by one comparison; of floats a NaN on the left stays and one on the right is left
    out.
    """
    # An unordered comparison chooses the left side for a NaN, and costs as much as an ordered one.
    kind = "fcmp u" if is_float(lhs.dtype) else f"icmp {'u' if is_unsigned(lhs.dtype) or lhs.dtype == 'bool' else 's'}"
    chosen = emit(f"{kind}{'gt' if op is BinaryOp.MAX else 'lt'} {lhs.typed}, {rhs.text}", lhs.lanes, "bool")
    return emit(f"select {chosen.typed}, {lhs.typed}, {rhs.typed}", lhs.lanes, lhs.dtype)


def _literal(value: Value) -> bool:
    """Whether the value is a number of the program text, which is no NaN."""
    return not value.text.startswith("%")


def shift(emit: Emit, op: BinaryOp, value: Value, amount: Value) -> Value:
    """`value` shifted by any amount; LLVM's own shifts have no result for one that is negative or too large."""
    dtype, lanes = value.dtype, value.lanes
    width = item_bytes(dtype) * 8
    inside = emit(f"icmp ult {amount.typed}, {literal(width, dtype, lanes)}", lanes, "bool")
    if op is BinaryOp.SHR and not is_unsigned(dtype):
        most = Value(literal(width - 1, dtype, lanes), lanes, dtype)
        amount = emit(f"select {inside.typed}, {amount.typed}, {most.typed}", lanes, dtype)
        return emit(f"ashr {value.typed}, {amount.text}", lanes, dtype)
    shifted = emit(f"{'shl' if op is BinaryOp.SHL else 'lshr'} {value.typed}, {amount.text}", lanes, dtype)
    nothing = Value(literal(0, dtype, lanes), lanes, dtype)
    return emit(f"select {inside.typed}, {shifted.typed}, {nothing.typed}", lanes, dtype)


def floor_division(emit: Emit, op: BinaryOp, lhs: Value, rhs: Value) -> Value:
    """Quotient or remainder rounded towards minus infinity."""
    dtype, lanes = lhs.dtype, lhs.lanes
    kind = llvm_type(dtype, lanes)
    if is_float(dtype):
        quotient = emit(f"fdiv {kind} {lhs.text}, {rhs.text}", lanes, dtype)
        floor = call_instruction(emit, "floor", [quotient], dtype)
        if op is BinaryOp.FLOORDIV:
            return floor
        whole = emit(f"fmul {floor.typed}, {rhs.text}", lanes, dtype)
        return emit(f"fsub {kind} {lhs.text}, {whole.text}", lanes, dtype)
    if is_unsigned(dtype):
        name = "udiv" if op is BinaryOp.FLOORDIV else "urem"
        return emit(f"{name} {kind} {lhs.text}, {rhs.text}", lanes, dtype)
    quotient = emit(f"sdiv {kind} {lhs.text}, {rhs.text}", lanes, dtype)
    rest = emit(f"srem {kind} {lhs.text}, {rhs.text}", lanes, dtype)
    zero = literal(0, dtype, lanes)
    nonzero = emit(f"icmp ne {rest.typed}, {zero}", lanes, "bool")
    mixed = emit(f"xor {rest.typed}, {rhs.text}", lanes, dtype)
    opposite = emit(f"icmp slt {mixed.typed}, {zero}", lanes, "bool")
    adjust = emit(f"and {nonzero.typed}, {opposite.text}", lanes, "bool")
    if op is BinaryOp.FLOORDIV:
        less = emit(f"sub {quotient.typed}, {literal(1, dtype, lanes)}", lanes, dtype)
        return emit(f"select {adjust.typed}, {less.typed}, {quotient.typed}", lanes, dtype)
    more = emit(f"add {rest.typed}, {rhs.text}", lanes, dtype)
    return emit(f"select {adjust.typed}, {more.typed}, {rest.typed}", lanes, dtype)


def cast(emit: Emit, value: Value, dtype: str) -> Value:
    """The value in another type, as NumPy's astype does it."""
    source = value.dtype
    if source == dtype:
        return value
    target = llvm_type(dtype, value.lanes)
    if dtype == "bool":
        zero = literal(0, source, value.lanes)
        compare = "fcmp une" if is_float(source) else "icmp ne"
        return emit(f"{compare} {value.typed}, {zero}", value.lanes, "bool")
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
    return emit(f"{name} {value.typed} to {target}", value.lanes, dtype)


def _compare(op: BinaryOp, dtype: str) -> str:
    names = {BinaryOp.EQ: "eq", BinaryOp.NE: "ne", BinaryOp.LT: "lt", BinaryOp.LE: "le"}
    name = names[op]
    if is_float(dtype):
        return f"fcmp {'u' if op is BinaryOp.NE else 'o'}{name}"
    if op in (BinaryOp.EQ, BinaryOp.NE):
        return f"icmp {name}"
    return f"icmp {'u' if is_unsigned(dtype) or dtype == 'bool' else 's'}{name}"
