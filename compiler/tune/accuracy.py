"""Measures the errors of a network's outputs, and limits them to a few times the errors of ONNX Runtime.

The comparison at the end of a run (`compare.py`) uses both. Errors are differences from the exact outputs: those of
onnx.reference in float64, for half types those of ONNX Runtime in float32; without either, or in int8, those of ONNX
Runtime without optimizations. `find_error_limits` measures the errors of right alternatives: of ONNX Runtime with and
without optimizations, on inputs that differ by a rounding, and of the exact outputs rounded to half types. The limit
is a multiple of the largest.
"""

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.dtype import Array, is_float
from retune.compiler.core.errors import MeasureError
from retune.compiler.frontend.offload.wider import Arrays, Outputs, WiderModel
from retune.compiler.tune.onnx_runtime import OnnxRuntime

Errors = NDArray[np.float64]
"""Shape (outputs, 2): relative errors, the largest and the mean; or one such pair."""

# Sums in another order were up to 4 times as far from float64 as ONNX Runtime's, without Winograd's convolutions.
_LIMIT_FACTOR = 8.0
# Rounding errors of sums move some values to the next quantum, and so does such a relative change of the inputs.
_LIMIT_FACTOR_INT8, _INPUT_CHANGE_INT8 = 3.0, 2.0**-12
_LARGEST_LIMIT = 0.05
"""Cap of the multiple: of the largest error, in int8 of the mean error. Beyond, rough and wrong results look alike."""
_ALLOWED_QUANTA = (2.0, 0.5)
"""The largest and the mean error that are always right in a network with quantized values, in quanta. The quantum of
an output in floats is its largest value divided by `_LEVELS`.
"""
_LEVELS = 127
_TINY = np.finfo(np.float64).tiny
"""Avoids a division by 0."""


def errors_of(outputs: Outputs, reference: Outputs) -> Errors:
    """Errors (outputs, 2): of every output the largest difference, relative to the largest finite value of the
    reference, and the mean difference, relative to the mean value. They are infinite if shapes differ, or an infinity
    or a NaN does.
    """
    rows = np.full((len(reference), 2), np.inf)
    for row, got, wanted in zip(rows, outputs, reference, strict=True):
        if got.shape == wanted.shape:
            got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
            same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
            with np.errstate(invalid="ignore"):
                difference = np.where(same, 0.0, got - wanted)
            # Elements near 0 are differences of large terms, and have no relative accuracy of their own.
            row[:] = _measure_sizes(difference) / (_measure_finite_sizes(wanted) + _TINY)
    return np.asarray(np.nan_to_num(rows, nan=np.inf, posinf=np.inf))


def find_error_limits(
    model: bytes, threads: int, inputs: Arrays, optimized: Outputs | None, least: float
) -> tuple[str, Outputs, Errors]:
    """Compute exact outputs of a model, and the limits of the errors of right outputs.

    `model` is a serialized ONNX model, `optimized` are ONNX Runtime's usual outputs, None where it has no kernels for
    the model's types. Returns the name of what computed the exact outputs, these, and the limits (outputs, 2) of what
    `errors_of` returns, each at least `least`.

    Raises: MeasureError when the model cannot be computed, or only in one way.
    """
    wider = WiderModel(model)
    quanta = wider.quanta

    def run_plain(arrays: Arrays) -> Outputs:
        return OnnxRuntime(wider.plain, threads, is_optimized=False).run(arrays)

    def run_wide(arrays: Arrays) -> Outputs:
        if not wider.is_float32:
            return wider.evaluate(arrays)
        return OnnxRuntime(wider.serialize(), threads, is_optimized=False).run(wider.widen(arrays))

    # Optimized sums of bytes saturate on CPUs without VNNI.
    alternatives = [] if optimized is None or quanta else [optimized]
    exact_name, run = "ONNX Runtime without optimizations", run_plain
    try:
        exact = run(inputs)
    except MeasureError:  # it has few kernels of bfloat16
        exact_name, run = wider.name, run_wide
        exact = run(inputs)
    with suppress(MeasureError):
        # A fault of onnx.reference would allow any error.
        if not quanta and np.max(errors_of(exact, wide := run_wide(inputs))[:, 0], initial=0.0) <= _LARGEST_LIMIT:
            alternatives += [exact] if run is run_plain else []
            exact_name, exact = wider.name, wide
    if any(is_float(array.dtype.name) for array in inputs.values()):
        alternatives.append(run(_perturb(inputs, bool(quanta))))
    if not alternatives and optimized is not None:  # bytes and inputs of integers, which no rounding changes
        alternatives.append(optimized)
    if not alternatives:
        raise MeasureError("the model can be computed in one way only")
    # A change of the inputs may be smaller than the rounding of the outputs, as beside a large bias.
    alternatives.append(wider.round(exact))
    errors = np.asarray([errors_of(alternative, exact) for alternative in alternatives])
    # An alternative that has an infinity or a NaN elsewhere would allow any error.
    factor = _LIMIT_FACTOR_INT8 if quanta else _LIMIT_FACTOR
    limits = factor * np.max(np.where(np.isfinite(errors), errors, 0.0), axis=0)
    capped_limits = limits[:, 1 if quanta else 0]
    np.minimum(capped_limits, _LARGEST_LIMIT, out=capped_limits)
    for row, quantum, output in zip(limits, quanta, exact, strict=False):
        sizes = _measure_finite_sizes(output)
        step = quantum or sizes[0] / _LEVELS
        np.maximum(row, np.multiply(_ALLOWED_QUANTA, step) / (sizes + _TINY), out=row)
    return exact_name, exact, np.maximum(limits, least)


def _measure_sizes(array: Array) -> Errors:
    """The largest and the mean of absolute values, (2,)."""
    values = np.abs(np.asarray(array, np.float64))
    return np.asarray([np.max(values, initial=0.0), np.sum(values) / max(values.size, 1)])


def _measure_finite_sizes(array: Array) -> Errors:
    """As `_measure_sizes`, with 0 in place of infinities and NaNs."""
    return _measure_sizes(np.where(np.isfinite(np.asarray(array, np.float64)), array, 0.0))


def _perturb(inputs: Arrays, is_quantized: bool) -> dict[str, Array]:
    """Inputs whose floats differ by a rounding, up or down."""
    random, changed = np.random.default_rng(0), dict(inputs)
    for name in [name for name, array in inputs.items() if is_float(array.dtype.name)]:
        array = inputs[name]
        sign = random.choice((-1.0, 1.0), array.shape)
        away = (sign * np.inf).astype(array.dtype)
        moved = array * (1.0 + sign * _INPUT_CHANGE_INT8) if is_quantized else np.nextafter(array, away)
        changed[name] = np.asarray(moved).astype(array.dtype)
    return changed
