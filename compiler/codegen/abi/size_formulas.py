"""Writes formulas of symbolic extents as instructions, and whether all their values are exact and in range."""

from collections.abc import Mapping

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import FLAG, LONG, CFunction
from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.dims import Atom, Dim, dim_to_json
from retune.compiler.ir.guards import Guard
from retune.compiler.runtime.artifact import ALIGNMENT, MOST_SIZE
from retune.compiler.runtime.executor.plan import BufferSpec

_MOST_BYTES = 1 << 62


class SizeFormulas:
    """Formulas over `symbols` in one function. Numbers cost no instruction, and a formula that occurs again none.

    `fits` is whether no value so far overflowed, was divided by zero, or was out of its range.
    """

    def __init__(self, run: CFunction, symbols: Mapping[str, ir.Value]) -> None:
        self._run, self._symbols = run, symbols
        self._values: dict[str, ir.Value] = {}
        self.fits: ir.Value = FLAG(1)

    def require(self, condition: ir.Value) -> None:
        """A condition of `fits`."""
        self.fits = self._run.builder.and_(self.fits, condition)

    def extent(self, extent: int) -> ir.Value:
        """An extent of an array, which is from 0 to 2**31 - 1."""
        if not isinstance(extent, Dim):
            return LONG(extent)
        # By structure: whether two formulas are equal may depend on the symbols.
        key = repr(dim_to_json(extent))
        if key not in self._values:
            self._values[key] = value = self._value(extent)
            self.require(self._run.builder.icmp_unsigned("<", value, LONG(MOST_SIZE)))
        return self._values[key]

    def nbytes(self, spec: BufferSpec) -> ir.Value:
        """The bytes of a buffer."""
        if not any(isinstance(extent, Dim) for extent in spec.shape):
            return LONG(spec.nbytes)
        nbytes: ir.Value = LONG(item_bytes(spec.dtype))
        for extent in spec.shape:
            nbytes = self._exact("smul", nbytes, self.extent(extent))
        self.require(self._run.builder.icmp_unsigned("<", nbytes, LONG(_MOST_BYTES)))
        return nbytes

    def add(self, first: ir.Value, second: ir.Value) -> ir.Value:
        """A sum."""
        return self._exact("sadd", first, second)

    def maximum(self, first: ir.Value, second: ir.Value) -> ir.Value:
        """The larger of two numbers that are not negative."""
        return self._run.builder.select(self._run.builder.icmp_unsigned(">", first, second), first, second)

    def align(self, nbytes: ir.Value) -> ir.Value:
        """The next multiple of the alignment of buffers."""
        return self._run.builder.and_(self._run.builder.add(nbytes, LONG(ALIGNMENT - 1)), LONG(-ALIGNMENT))

    def guard(self, guard: Guard) -> None:
        """Make a guard a condition of `fits`."""
        holds = self._run.builder.icmp_signed("==" if guard.is_zero else ">", self._value(guard.dim), LONG(0))
        self.require(holds if guard.holds else self._run.builder.not_(holds))

    def _value(self, extent: int) -> ir.Value:
        if not isinstance(extent, Dim):
            return LONG(extent)
        total: ir.Value | None = None
        for monomial, factor in extent.terms.items():
            term: ir.Value = LONG(factor)
            for atom in monomial:
                term = self._exact("smul", term, self._atom(atom))
            total = term if total is None else self._exact("sadd", total, term)
        assert total is not None, "a formula has a symbol"
        return total

    def _atom(self, atom: Atom) -> ir.Value:
        """A symbol, or a quotient or remainder rounded down, as Python divides."""
        if isinstance(atom, str):
            return self._symbols[atom]
        builder = self._run.builder
        numerator, divisor = self._value(atom.numerator), self._value(atom.denominator)
        if isinstance(atom.denominator, Dim) or not atom.denominator:
            is_positive = builder.icmp_signed(">", divisor, LONG(0))
            self.require(is_positive)
            divisor = builder.select(is_positive, divisor, LONG(1))
        quotient, remainder = builder.sdiv(numerator, divisor), builder.srem(numerator, divisor)
        # Machines round toward zero.
        is_below = builder.icmp_signed("<", builder.xor(remainder, divisor), LONG(0))
        is_below = builder.and_(is_below, builder.icmp_signed("!=", remainder, LONG(0)))
        if atom.op == "//":
            return builder.sub(quotient, builder.zext(is_below, LONG))
        return builder.select(is_below, builder.add(remainder, divisor), remainder)

    def _exact(self, operation: str, first: ir.Value, second: ir.Value) -> ir.Value:
        """A sum or product, which `fits` in 64 bits."""
        builder = self._run.builder
        pair = getattr(builder, f"{operation}_with_overflow")(first, second)
        self.require(builder.not_(builder.extract_value(pair, 1)))
        return builder.extract_value(pair, 0)
