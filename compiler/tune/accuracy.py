"""Judges the error of outputs: a network is right if its error is at most a few times that of ONNX Runtime.

Errors are differences from the exact outputs: those of onnx.reference in float64, for half types those of ONNX Runtime
in float32; without either, or in int8, those of ONNX Runtime without optimizations. Its errors are measured with and
without optimizations, on inputs that differ by a rounding, and on the exact outputs rounded to half types.
"""

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.dtype import Array, is_float
from retune.compiler.core.errors import MeasureError
from retune.compiler.frontend.offload.wider import Arrays, Outputs, WiderModel
from retune.compiler.tune.onnx_runtime import OnnxRuntime

Errors = NDArray[np.float64]

# Sums in another order were up to 4 times as far from float64 as ONNX Runtime's, without Winograd's convolutions.
_FACTOR = 8.0
# Rounding errors of sums move some values to the next quantum, and so does such a relative change of the inputs.
_FACTOR_INT8, _CHANGE_INT8 = 3.0, 2.0**-12
_MOST = 0.05
"""Of the largest error, in int8 of the mean error: beyond, rough and wrong results look alike."""
_QUANTA = (2.0, 0.5)
"""The largest and the mean error of a quantized output; of another one `_STEPS` quanta are the largest value."""
_STEPS, _TINY = 127, np.finfo(np.float64).tiny


def errors_of(outputs: Outputs, reference: Outputs) -> Errors:
    """For every output the largest difference, relative to the largest value of the reference, and the mean,
    relative to the mean value, of finite values; infinite when shapes differ, or where an infinity or a NaN does.
    """
    rows = np.full((len(reference), 2), np.inf)
    for row, got, wanted in zip(rows, outputs, reference, strict=True):
        if got.shape == wanted.shape:
            got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
            same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
            with np.errstate(invalid="ignore"):
                difference = np.where(same, 0.0, got - wanted)
            # Elements near 0 are differences of large terms, and have no relative accuracy of their own.
            row[:] = _sizes(difference) / (_sizes_of_finite(wanted) + _TINY)
    return np.asarray(np.nan_to_num(rows, nan=np.inf, posinf=np.inf))


def judge(
    model: bytes, threads: int, inputs: Arrays, optimized: Outputs | None, least: float
) -> tuple[str, Outputs, Errors]:
    """Compute a model as exactly as possible. Returns how, the outputs, and how large `errors_of` right outputs may be,
    at least `least`. `optimized` are ONNX Runtime's usual outputs, None where it has no kernels for the model's types.

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
    ways = [] if optimized is None or quanta else [optimized]
    how, run = "ONNX Runtime without optimizations", run_plain
    try:
        exact = run(inputs)
    except MeasureError:  # it has few kernels of bfloat16
        how, run = wider.name, run_wide
        exact = run(inputs)
    with suppress(MeasureError):
        # A fault of onnx.reference would allow any error.
        if not quanta and np.max(errors_of(exact, wide := run_wide(inputs))[:, 0], initial=0.0) <= _MOST:
            ways += [exact] if run is run_plain else []
            how, exact = wider.name, wide
    if any(is_float(array.dtype.name) for array in inputs.values()):
        ways.append(run(_change(inputs, bool(quanta))))
    if not ways and optimized is not None:  # bytes and inputs of integers, which no rounding changes
        ways.append(optimized)
    if not ways:
        raise MeasureError("the model can be computed in one way only")
    # A change of the inputs may be smaller than the rounding of the outputs, as beside a large bias.
    ways.append(wider.round(exact))
    spread = np.asarray([errors_of(way, exact) for way in ways])
    # A way that has an infinity or a NaN elsewhere would allow any error.
    limits = (_FACTOR_INT8 if quanta else _FACTOR) * np.max(np.where(np.isfinite(spread), spread, 0.0), axis=0)
    capped = limits[:, 1 if quanta else 0]
    np.minimum(capped, _MOST, out=capped)
    for row, quantum, output in zip(limits, quanta, exact, strict=False):
        sizes = _sizes_of_finite(output)
        np.maximum(row, np.multiply(_QUANTA, quantum or sizes[0] / _STEPS) / (sizes + _TINY), out=row)
    return how, exact, np.maximum(limits, least)


def _sizes(array: Array) -> Errors:
    """The largest and the mean of absolute values."""
    values = np.abs(np.asarray(array, np.float64))
    return np.asarray([np.max(values, initial=0.0), np.sum(values) / max(values.size, 1)])


def _sizes_of_finite(array: Array) -> Errors:
    return _sizes(np.where(np.isfinite(np.asarray(array, np.float64)), array, 0.0))


def _change(inputs: Arrays, is_quantized: bool) -> dict[str, Array]:
    """Inputs whose floats differ by a rounding, up or down."""
    random, changed = np.random.default_rng(0), dict(inputs)
    for name in [name for name, array in inputs.items() if is_float(array.dtype.name)]:
        array = inputs[name]
        sign = random.choice((-1.0, 1.0), array.shape)
        away = (sign * np.inf).astype(array.dtype)
        moved = array * (1.0 + sign * _CHANGE_INT8) if is_quantized else np.nextafter(array, away)
        changed[name] = np.asarray(moved).astype(array.dtype)
    return changed
