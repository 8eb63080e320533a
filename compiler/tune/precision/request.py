"""What is asked of a network's precision, and what was chosen, as plain data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from retune.compiler.core.errors import OptionError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.core.options import TuneOptions
from retune.compiler.graph.precision.layers import BFLOAT16, FLOAT32, INT8, Assignment
from retune.compiler.runtime.artifact import Array

AUTO = "auto"
TOLERANCE = 0.01
"""Largest error at the outputs that `auto` allows unless told otherwise."""
LARGEST = "largest"
"""The metric unless another is asked for."""
_DETAILS = ("tolerance", "metric", "calibrate")
_ALLOWED = {BFLOAT16: 0.2, INT8: 0.5}
"""The same of a network in bfloat16 or int8: only a wrong network is further off."""

Outputs = Sequence[Array]
Metric = Callable[[Outputs, Outputs], float]
"""The error of outputs against those in float32."""


@dataclass(frozen=True, slots=True)
class PrecisionRequest:
    """Precision of a network: float32, bfloat16, int8 or auto. With auto the error at the outputs, by `metric`, stays
    within `tolerance`. `calibrate` is a path of samples, or samples; None: random inputs.
    """

    precision: str = FLOAT32
    tolerance: float | None = None
    metric: str | Metric = LARGEST
    calibrate: Any = None

    @classmethod
    def of(cls, options: TuneOptions, **given: Any) -> Self:
        """The request in the options of a run; `given` replaces what they cannot hold."""
        values = {name: getattr(options, name) for name in ("precision", *_DETAILS)}
        return cls(**{**values, **{name: value for name, value in given.items() if value is not None}})

    @property
    def is_float32(self) -> bool:
        return self.precision == FLOAT32

    @property
    def allowed(self) -> float:
        """The largest error at the outputs of a right network."""
        return self.tolerance or _ALLOWED.get(self.precision, TOLERANCE)


def require_precision(options: TuneOptions, given: Mapping[str, object]) -> None:
    """Check what was `given` by name beside the settings. Raises: OptionError for details of float32."""
    # A default that is passed on, as by a deployment, asks for nothing.
    asked = {name: value for name in _DETAILS if (value := given.get(name)) is not None}
    unused = [name for name, value in asked.items() if not (isinstance(value, str) and value == LARGEST)]
    if options.precision == FLOAT32 and unused:
        raise OptionError(f"the option {unused[0]} needs a precision: bfloat16, int8 or auto")


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """A layer, its precision, its seconds in float32 and as chosen, and the error that it alone causes at the outputs;
    times and errors are None where nothing was measured.
    """

    name: str
    op: str
    precision: str
    float32_seconds: float | None = None
    seconds: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """The precision of every layer. `error` is that of the outputs by `metric` on the samples; the seconds are of
    the whole network, None where it was not timed; `curve` has the predicted seconds at each tolerance; `note` is a
    sentence where the network is not what was asked for, `warning` where the samples are random.
    """

    precision: str
    layers: tuple[LayerChoice, ...] = ()
    ranges: Mapping[str, tuple[float, float]] | None = None
    metric: str = LARGEST
    tolerance: float = TOLERANCE
    error: float = 0.0
    float32_seconds: float | None = None
    seconds: float | None = None
    curve: tuple[tuple[float, float], ...] = ()
    note: str = ""
    warning: str = ""

    @property
    def assignment(self) -> Assignment:
        """What the graph pass takes."""
        return Assignment({layer.name: layer.precision for layer in self.layers}, self.ranges or {})

    @property
    def is_mixed(self) -> bool:
        """Whether any layer is in another precision than float32."""
        return any(layer.precision != FLOAT32 for layer in self.layers)

    def text(self) -> str:
        """A sentence for people."""
        if self.note:
            return self.note
        counts: dict[str, int] = {}
        for layer in self.layers:
            counts[layer.precision] = counts.get(layer.precision, 0) + 1
        shares = ", ".join(f"{count} in {name}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1]))
        return f"layers: {shares}; error of the outputs ({self.metric}) {self.error:.2%}"

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: JsonObject) -> Self:
        """The inverse of `to_json`. Raises: TypeError, ValueError, KeyError."""
        ranges = fields.get("ranges")
        return cls(
            **{
                **fields,
                "layers": tuple(LayerChoice(**layer) for layer in fields["layers"]),
                "ranges": ranges and {name: (float(low), float(high)) for name, (low, high) in ranges.items()},
                "curve": tuple((float(tolerance), float(seconds)) for tolerance, seconds in fields["curve"]),
            }
        )
