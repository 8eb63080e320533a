"""Errors of a network's outputs against those in float32: largest, mean, cosine, top1, or a function of the user."""

from collections.abc import Mapping, Sequence

import numpy as np

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.tune.precision.request import Metric, Outputs

_TINY = 1e-30
_ROUNDING = 1e-6
"""How far below 0 a distance such as 1 - cosine may be computed."""
_WHOLE = "iub"
"""Kinds of NumPy's types that hold classes rather than scores."""


def _each(function: Metric) -> Metric:
    """The largest error among the outputs; of integers, such as classes or indices, the share that differs."""

    def largest(outputs: Outputs, reference: Outputs) -> float:
        errors = [
            _differing(made, wanted) if np.asarray(wanted).dtype.kind in _WHOLE else function([made], [wanted])
            for made, wanted in zip(outputs, reference, strict=True)
        ]
        return float(np.max(errors, initial=0.0))  # which keeps a NaN

    return largest


def _differing(made: Array, wanted: Array) -> float:
    return float(np.mean(made != wanted)) if np.size(wanted) else 0.0


def _largest(outputs: Outputs, reference: Outputs) -> float:
    made, wanted = _numbers(outputs[0], reference[0])
    return float(np.max(np.abs(made - wanted), initial=0.0) / (np.max(np.abs(wanted), initial=0.0) + _TINY))


def _mean(outputs: Outputs, reference: Outputs) -> float:
    made, wanted = _numbers(outputs[0], reference[0])
    return float(np.sum(np.abs(made - wanted)) / (np.sum(np.abs(wanted)) + _TINY))


def _cosine(outputs: Outputs, reference: Outputs) -> float:
    made, wanted = (array.ravel() for array in _numbers(outputs[0], reference[0]))
    norms = np.linalg.norm(made) * np.linalg.norm(wanted)
    if norms == 0.0:
        return float(np.any(made != wanted))
    return max(0.0, 1.0 - float(made @ wanted / norms))


def _top1(outputs: Outputs, reference: Outputs) -> float:
    made, wanted = _numbers(outputs[0], reference[0])
    if not wanted.ndim:
        return float(made != wanted)
    return float(np.mean(made.argmax(axis=-1) != wanted.argmax(axis=-1)))


METRICS: Mapping[str, Metric] = {
    "largest": _each(_largest),  # largest difference over the largest magnitude of the output
    "mean": _each(_mean),  # mean difference over the mean magnitude
    "cosine": _each(_cosine),  # 1 - cosine similarity
    "top1": _each(_top1),  # share of rows of the last axis whose largest element is another
}


def require_measurable(metric: str | Metric, reference: Sequence[Outputs]) -> None:
    """Check that errors against the outputs of samples in float32 tell anything.

    Raises: OptionError where an output has no finite number, and for top1 where no output has two classes.
    """
    arrays = [np.asarray(array) for outputs in reference for array in outputs if np.size(array)]
    if not all(np.isfinite(array.astype(np.float64)).any() for array in arrays):
        raise OptionError("an output in float32 is NaN or infinite on the samples: give others, by --calibrate FILE")
    if metric == "top1" and not any(array.dtype.kind in _WHOLE or array.shape[-1:] > (1,) for array in arrays):
        raise OptionError("the metric top1 needs scores of classes: no output has two or more along its last axis")


def error_of(metric: str | Metric, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
    """The largest error among samples, of top1 the mean; infinite where an output is no number.

    Raises: OptionError when a function of the user returns no number, or a negative one.
    """
    function = METRICS[metric] if isinstance(metric, str) else metric
    errors = []
    for made, wanted in zip(outputs, reference, strict=True):
        result = function(made, wanted)
        try:
            error = float(result)
        except (TypeError, ValueError):
            error = -1.0
        if error < -_ROUNDING:
            raise OptionError(f"the metric must return a number of at least 0, not {result!r:.80}")
        errors.append(error if np.isfinite(error) else float("inf"))
    return float(np.mean(errors)) if metric == "top1" else max(errors, default=0.0)


def _numbers(made: Array, wanted: Array) -> tuple[Array, Array]:
    """Both as float64; where the reference is no number, neither counts."""
    made, wanted = np.asarray(made, np.float64), np.asarray(wanted, np.float64)
    known = np.isfinite(wanted)
    return np.where(known, made, 0.0), np.where(known, wanted, 0.0)
