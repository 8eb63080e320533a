"""Tensors that a registered function writes.

The function is referred to by name: the program that runs the computation registers it
(`retune.compiler.runtime.ffi.registry`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from retune.compiler.core.errors import DefinitionError
from retune.compiler.te.checks import checked_attributes, checked_dtype, checked_name, checked_shape, with_tag
from retune.compiler.te.tensor import CallArgument, ExternOp, Handle, PackedCall, Tensor, results_of


def call_packed(function: str, *args: CallArgument) -> PackedCall:
    """A call of the function registered as `function`: handles become arrays, numbers and strings are passed on.

    Raises: DefinitionError for an argument of another type.
    """
    for number, argument in enumerate(args):
        if not isinstance(argument, (Handle, int, float, str)):
            raise DefinitionError(
                f"{function}: argument {number} is {argument!r}; a registered function takes the inputs and results of "
                "its stage, numbers and strings"
            )
    return PackedCall(function, args)


@overload
def extern(
    shape: Sequence[int],
    inputs: Sequence[Tensor],
    fcompute: Callable[[tuple[Handle, ...], tuple[Handle, ...]], PackedCall],
    name: str = "extern",
    dtype: str | Sequence[str] | None = None,
    in_buffers: Sequence[Tensor] | None = None,
    out_buffers: Sequence[Tensor] | None = None,
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> Tensor: ...
@overload
def extern(
    shape: Sequence[Sequence[int]],
    inputs: Sequence[Tensor],
    fcompute: Callable[[tuple[Handle, ...], tuple[Handle, ...]], PackedCall],
    name: str = "extern",
    dtype: str | Sequence[str] | None = None,
    in_buffers: Sequence[Tensor] | None = None,
    out_buffers: Sequence[Tensor] | None = None,
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> tuple[Tensor, ...]: ...
def extern(
    shape: Sequence[int] | Sequence[Sequence[int]],
    inputs: Sequence[Tensor],
    fcompute: Callable[[tuple[Handle, ...], tuple[Handle, ...]], PackedCall],
    name: str = "extern",
    dtype: str | Sequence[str] | None = None,
    in_buffers: Sequence[Tensor] | None = None,
    out_buffers: Sequence[Tensor] | None = None,
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Tensors that a registered function writes: of `shape`, or one for each of several shapes.

    `fcompute(ins, outs)` gets handles of the inputs and results and returns a `call_packed` of them. The function gets
    arrays that share the kernel's memory and must fill the results; its return value is ignored. The arrays are
    NumPy's, those of the inputs read-only; from a function of a `retune.compiler.build` module, and in C, they are the
    FFI's. `dtype` is one type a result, or one for all; by default that of the inputs, if they agree. The attribute
    `FLOP` is the number of operations of the call. `in_buffers` and `out_buffers` are placeholders of the shapes and
    types that the function expects, which are checked: all arrays are dense. `tag` becomes an attribute.
    Raises: DefinitionError when shapes, types or the call do not fit.
    """
    # Several shapes are a list of lists; an empty list is the shape of a scalar.
    several = bool(shape) and all(isinstance(item, Sequence) for item in shape)
    checked_name("a tensor", name)
    shapes_list: Any = shape if several else (shape,)
    dtypes = tuple(checked_dtype(name, kind) for kind in _dtypes(name, dtype, inputs, len(shapes_list)))
    shapes = tuple(checked_shape(name, item, kind) for item, kind in zip(shapes_list, dtypes, strict=True))
    ins = tuple(Handle(tensor.name, tensor.shape, tensor.dtype, at, False) for at, tensor in enumerate(inputs))
    outs = tuple(
        Handle(f"{name}.v{at}" if len(shapes) > 1 else name, extents, kind, at, True)
        for at, (extents, kind) in enumerate(zip(shapes, dtypes, strict=True))
    )
    _check_buffers(name, in_buffers, ins)
    _check_buffers(name, out_buffers, outs)
    call = fcompute(ins, outs)
    if not isinstance(call, PackedCall):
        raise DefinitionError(f"{name}: the function of (ins, outs) must return call_packed(…), not {call!r}")
    handles = [argument for argument in call.args if isinstance(argument, Handle)]
    if not all(handle in (*ins, *outs) for handle in handles):
        raise DefinitionError(f"{name}: {call} has a handle of another stage")
    for out in outs:
        if out not in handles:
            raise DefinitionError(f"{name}: {call} does not take the result {out}, so nothing would write it")
    results = results_of(
        ExternOp(name, shapes, dtypes, tuple(inputs), call, checked_attributes(name, with_tag(attrs, tag)))
    )
    return results if several else results[0]


def _check_buffers(name: str, buffers: Sequence[Tensor] | None, handles: Sequence[Handle]) -> None:
    """Check that `buffers` have the shapes and types of `handles`. Raises: DefinitionError."""
    if buffers is None:
        return
    actual = [(tuple(buffer.shape), buffer.dtype) for buffer in buffers]
    expected = [(handle.shape, handle.dtype) for handle in handles]
    if actual != expected:
        raise DefinitionError(f"{name}: its buffers are {actual}, but the function gets {expected}")


def _dtypes(name: str, dtype: str | Sequence[str] | None, inputs: Sequence[Tensor], count: int) -> tuple[str, ...]:
    if dtype is None:
        input_types = {tensor.dtype for tensor in inputs}
        if len(input_types) != 1:
            raise DefinitionError(
                f"{name}: say the dtype of its results; the inputs have {sorted(input_types) or 'none'}"
            )
        return (input_types.pop(),) * count
    dtypes = (dtype,) * count if isinstance(dtype, str) else tuple(dtype)
    if len(dtypes) != count:
        raise DefinitionError(f"{name}: {count} results have {len(dtypes)} dtypes")
    return dtypes
