"""Shapes of a network's inputs as users write them: `image=1,3,224,224`, with ranges `ids=1..8,1..512`.

An extent is a number, a range, `?` for any size, or the name of a symbol, which may have a range: `tokens:1..512`.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retune.compiler.core.errors import OptionError
from retune.compiler.core.json_reader import integer

_MOST_DIGITS = 9
"""Digits of an extent: symbols are below 2**31."""


@dataclass(frozen=True, slots=True)
class Size:
    """An extent that differs from call to call: from `low` to `high`, both included, without a bound where `high` is
    None. Extents of one `symbol` are equal; without a symbol the extent keeps the symbol of the model.
    """

    symbol: str = ""
    low: int = 0
    high: int | None = None

    @property
    def range(self) -> tuple[int, int] | None:
        """The range, None without bounds."""
        return None if self.high is None else (self.low, self.high)


Extent = int | Size


def parse_shape(text: str) -> tuple[str, tuple[Extent, ...]]:
    """The input and the shape that a string such as `image=1..8,3,224,224` names; `scale=` names a scalar.

    Raises: OptionError that names the dimension.
    """
    name, _, extents = text.rpartition("=")
    if not name:
        raise _unreadable(text)
    entries = extents.split(",") if extents.strip() else []
    return name, tuple(
        _extent(entry.strip(), text, f"dimension {axis} of {name}") for axis, entry in enumerate(entries)
    )


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[Extent, ...]]:
    """The shapes that strings name, by input. Raises: OptionError, also for an input named twice."""
    shapes: dict[str, tuple[Extent, ...]] = {}
    for name, extents in map(parse_shape, texts):
        if name in shapes:
            raise OptionError(f"two shapes are given for {name}: give one, with ranges as in {name}=1..8,1..512")
        shapes[name] = extents
    return shapes


def shape_texts(shapes: Mapping[str, Sequence[int | str]] | None) -> tuple[str, ...]:
    """Shapes as the command line has them. Raises: OptionError."""
    if shapes is None:
        return ()
    if not isinstance(shapes, Mapping):
        raise OptionError(f"shapes map names of inputs to their extents, unlike {shapes!r:.80}")
    for name, extents in shapes.items():
        if isinstance(extents, str) or not isinstance(extents, Iterable):
            raise OptionError(f"the shape of {name} must be integers such as (1, 3, 224, 224), not {extents!r:.80}")
    return tuple(f"{name}={','.join(map(str, extents))}" for name, extents in shapes.items())


def fixed_shapes(texts: Iterable[str], what: str) -> dict[str, tuple[int, ...]]:
    """The shapes that strings name, all numbers. Raises: OptionError that says that `what` takes no others."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, extents in parse_shapes(texts).items():
        shapes[name] = tuple(extent for extent in extents if isinstance(extent, int))
        if len(shapes[name]) < len(extents):
            raise OptionError(f"{what} takes fixed shapes, not a range for {name}: write {name}=1,3,224,224")
    return shapes


def has_sizes(texts: Iterable[str]) -> bool:
    """Whether any extent of these shapes differs from call to call. Raises: OptionError."""
    return any(isinstance(extent, Size) for text in texts for extent in parse_shape(text)[1])


@dataclass(frozen=True, slots=True)
class WeightedShapes:
    """Shapes of inputs by name, the weight of calls with these, more than 0, and the file and entry that says so."""

    shapes: Mapping[str, tuple[int, ...]]
    weight: float
    where: str


def read_shapes(path: str) -> tuple[WeightedShapes, ...]:
    """The shapes with weights in a JSON file: a list of objects such as `{"shapes": {"ids": [1, 128]}, "weight": 3}`.
    Without a weight it is 1.

    Raises: OptionError that names the file and the entry.
    """
    try:
        entries = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise OptionError(f"cannot read the shapes in {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is not JSON: {error}; {_EXAMPLE}") from error
    if not isinstance(entries, list) or not entries:
        raise OptionError(f"{path} has no list of shapes; {_EXAMPLE}")
    return tuple(_parse_entry(entry, f"{path}, entry {number}") for number, entry in enumerate(entries))


_EXAMPLE = 'write [{"shapes": {"ids": [1, 128]}, "weight": 3}, ...]'


def _parse_entry(entry: object, where: str) -> WeightedShapes:
    shapes = entry.get("shapes") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(shapes, dict) or not shapes:
        raise OptionError(f"{where} has no shapes by input; {_EXAMPLE}")
    unknown = entry.keys() - {"shapes", "weight"}
    if unknown:
        raise OptionError(f"{where} has the key {min(unknown)!r}, which says nothing; {_EXAMPLE}")
    weight = entry.get("weight", 1)
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < math.inf:
        raise OptionError(f"{where}: the weight must be a number above 0, not {weight!r:.40}")
    try:
        extents = {name: tuple(map(integer, shape)) for name, shape in shapes.items()}
    except (TypeError, ValueError) as error:
        raise OptionError(f"{where}: a shape is a list of integers; {error}") from error
    for name, shape in extents.items():
        if not all(1 <= extent < 10**_MOST_DIGITS for extent in shape):
            raise OptionError(
                f"{where}: the shape {list(shape)} of {name} must have extents from 1 to {10**_MOST_DIGITS - 1}"
            )
    return WeightedShapes(extents, float(weight), where)


def _extent(entry: str, text: str, where: str) -> Extent:
    if entry.isdecimal():
        return int(entry)
    if entry == "?":
        return Size()
    if entry.isidentifier():
        return Size(entry)
    symbol, _, sizes = entry.rpartition(":")
    low, dots, high = sizes.partition("..")
    numbers = [end.strip().removeprefix("-") for end in (low, high)]
    if not dots or not all(map(str.isdecimal, numbers)) or not (not symbol or symbol.isidentifier()):
        raise _unreadable(text)
    if "-" in sizes:
        raise OptionError(f"{where}: the range {sizes} is negative; sizes begin at 0")
    if max(map(len, numbers)) > _MOST_DIGITS:
        raise OptionError(f"{where}: the range {sizes} goes beyond the {10**_MOST_DIGITS - 1} of an extent")
    first, last = map(int, numbers)
    if first > last:
        raise OptionError(f"{where}: the range {sizes} is empty; did you mean {last}..{first}?")
    return first if first == last and not symbol else Size(symbol, first, last)


def _unreadable(text: str) -> OptionError:
    return OptionError(f"cannot read the shape {text!r}; write it as NAME=1,3,224,224, with ranges as NAME=1..8,1..512")
