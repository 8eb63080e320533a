"""Shapes at which a network of dynamic shapes is timed: the sizes that a user chose, or a sample of its ranges."""

from collections.abc import Mapping, Sequence
from math import sqrt

from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import Extent, Size
from retune.compiler.graph.program import Program
from retune.compiler.graph.region import Param, Shape

InputTypes = dict[str, tuple[str, Shape]]
"""Element types and shapes by input."""


def sample_shapes(program: Program, shapes: Mapping[str, Sequence[Extent]]) -> list[InputTypes]:
    """Types and shapes of all inputs at the smallest, a middle and the largest size of the ranges, each once.

    Raises: OptionError when a shape fits no input, or an extent has neither a number nor a range.
    """
    ranges = {**program.ranges, **_ranges_in(program, shapes)}
    samples: list[InputTypes] = []
    for sizes in (
        {symbol: low for symbol, (low, _) in ranges.items()},
        {symbol: round(sqrt(max(low, 1) * high)) for symbol, (low, high) in ranges.items()},
        {symbol: high for symbol, (_, high) in ranges.items()},
    ):
        inputs = {param.name: (str(param.dtype), _extents(param, sizes)) for param in program.inputs}
        if inputs not in samples:
            samples.append(inputs)
    return samples


def _extents(param: Param, sizes: Mapping[str, int]) -> Shape:
    if param.dims is None or param.dtype is None:
        raise OptionError(f"shape and type of the input {param} are not known: call the network itself")
    extents = []
    for axis, dim in enumerate(param.dims):
        size = dim if isinstance(dim, int) else sizes.get(_symbol(param, axis))
        if size is None:
            example = ", ".join(str(dim) if isinstance(dim, int) else "1" for dim in param.dims)
            raise OptionError(
                f"dimension {axis} of the input {param} has any size: choose a shape, such as "
                f"--shape {param.name}={example.replace(' ', '')}, in Python "
                f'shapes={{"{param.name}": ({example})}}'
            )
        extents.append(size)
    return tuple(extents)


def _ranges_in(program: Program, shapes: Mapping[str, Sequence[Extent]]) -> dict[str, tuple[int, int]]:
    """The ranges of symbols that shapes of inputs give. Raises: OptionError for a shape that fits no input."""
    params = {param.name: param for param in program.inputs}
    ranges: dict[str, tuple[int, int]] = {}
    for name, shape in shapes.items():
        param = params.get(name)
        if param is None:
            raise OptionError(f"a shape is given for {name}, but the inputs are {', '.join(params)}")
        dims = param.dims or ()
        if len(dims) != len(shape) or any(isinstance(d, int) and d != e for d, e in zip(dims, shape, strict=True)):
            raise OptionError(f"the shape given for {name} does not fit the input {param}")
        for axis, extent in enumerate(shape):
            bounds = extent.range if isinstance(extent, Size) else (extent, extent)
            symbol = _symbol(param, axis)
            if bounds is not None and ranges.setdefault(symbol, bounds) != bounds:
                raise OptionError(f"the shapes given have two sizes for {symbol}, which is the same in every input")
    return ranges


def _symbol(param: Param, axis: int) -> str:
    """What names an extent: its symbol, or where it is."""
    dim = (param.dims or ())[axis]
    return dim if isinstance(dim, str) else f"{param.name}_{axis}"
