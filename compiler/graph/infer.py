"""In: a node and the values it reads. Out: the shape and dtype of its result. Always: a misfit names the node."""

from collections.abc import Callable, Sequence
from itertools import zip_longest

from retune.compiler.dtype import item_bytes
from retune.compiler.errors import DefinitionError
from retune.compiler.graph.ir import Node, Value

Result = tuple[tuple[int, ...], str]
Rule = Callable[[Node, Sequence[Value]], Result]


def misfit(node: Node, operands: Sequence[Value], why: str) -> DefinitionError:
    """The error of a node whose operands do not fit: what it is, what it got and why that is wrong."""
    label = f"{node.op} {node.name!r}" if node.name else node.op
    return DefinitionError(f"{label} of ({'; '.join(map(str, operands))}): {why}")


def broadcast_shapes(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that both shapes broadcast to by NumPy's rule, or None when there is none."""
    extents: list[int] = []
    for a, b in zip_longest(reversed(first), reversed(second), fillvalue=1):
        if a != b and a != 1 and b != 1:
            return None
        extents.append(b if a == 1 else a)
    return tuple(reversed(extents))


def window_extent(extent: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """How many windows fit along one axis of a convolution or pool; zero or less when none does."""
    return (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1


def same_as_first(node: Node, operands: Sequence[Value]) -> Result:
    """Element-wise operators: shape and dtype of the operand."""
    del node
    return operands[0].shape, operands[0].dtype


def broadcast(node: Node, operands: Sequence[Value]) -> Result:
    """Binary operators: NumPy broadcasting of two operands of one dtype."""
    first, second = operands
    if first.dtype != second.dtype:
        raise misfit(node, operands, "the operands have different dtypes")
    shape = broadcast_shapes(first.shape, second.shape)
    if shape is None:
        raise misfit(node, operands, "the shapes do not broadcast")
    return shape, first.dtype


def predicate(node: Node, operands: Sequence[Value]) -> Result:
    """Element-wise tests: a bool for each element."""
    del node
    return operands[0].shape, "bool"


def comparison(node: Node, operands: Sequence[Value]) -> Result:
    """Two operands of one dtype, a bool for each pair."""
    return broadcast(node, operands)[0], "bool"


def where(node: Node, operands: Sequence[Value]) -> Result:
    """A bool condition and two operands of one dtype, all broadcast together."""
    condition, *choices = operands
    if condition.dtype != "bool":
        raise misfit(node, operands, "the condition must be bool")
    shape, dtype = broadcast(node, choices)
    joined = broadcast_shapes(condition.shape, shape)
    if joined is None:
        raise misfit(node, operands, "the shapes do not broadcast")
    return joined, dtype


def cast(node: Node, operands: Sequence[Value]) -> Result:
    """The operand's shape in the dtype of the attribute `dtype`."""
    return operands[0].shape, node.text("dtype")


def bits(node: Node, operands: Sequence[Value]) -> Result:
    """The operand's shape in the dtype of the attribute `dtype`, which has as many bytes."""
    if item_bytes(operands[0].dtype) != item_bytes(node.text("dtype")):
        raise misfit(node, operands, f"elements of {node.text('dtype')} have another number of bytes")
    return operands[0].shape, node.text("dtype")


def reduction(node: Node, operands: Sequence[Value]) -> Result:
    """The axes of `axes` become 1 (`keepdims`) or vanish."""
    (source,) = operands
    axes = node.ints("axes")
    if not axes or any(not 0 <= axis < len(source.shape) for axis in axes) or tuple(sorted(set(axes))) != axes:
        raise misfit(node, operands, f"axes {axes} must be ascending and within the rank")
    if node.flag("keepdims"):
        return tuple(1 if i in axes else n for i, n in enumerate(source.shape)), source.dtype
    return tuple(n for i, n in enumerate(source.shape) if i not in axes), source.dtype


def softmax(node: Node, operands: Sequence[Value]) -> Result:
    """The operand's shape; `axis` is within the rank."""
    if not 0 <= node.integer("axis") < len(operands[0].shape):
        raise misfit(node, operands, f"axis {node.integer('axis')} is outside the rank")
    return same_as_first(node, operands)


def normalize(node: Node, operands: Sequence[Value]) -> Result:
    """The operand's shape; `axes` are ascending and within the rank."""
    axes = node.ints("axes")
    if not axes or any(not 0 <= axis < len(operands[0].shape) for axis in axes) or tuple(sorted(set(axes))) != axes:
        raise misfit(node, operands, f"axes {axes} must be ascending and within the rank")
    return same_as_first(node, operands)


def dense(node: Node, operands: Sequence[Value]) -> Result:
    """(M, K) x (K, N) gives (M, N)."""
    x, w = operands
    if len(x.shape) != 2 or len(w.shape) != 2 or x.shape[1] != w.shape[0] or x.dtype != w.dtype:
        raise misfit(node, operands, "needs (M, K) and (K, N) of one dtype")
    return (x.shape[0], w.shape[1]), x.dtype


def batch_matmul(node: Node, operands: Sequence[Value]) -> Result:
    """(B, M, K) x (B, K, N) gives (B, M, N)."""
    a, b = operands
    fits = len(a.shape) == len(b.shape) == 3 and a.dtype == b.dtype
    if not fits or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise misfit(node, operands, "needs (B, M, K) and (B, K, N) of one dtype")
    return (a.shape[0], a.shape[1], b.shape[2]), a.dtype


def contract(node: Node, operands: Sequence[Value]) -> Result:
    """The extents of the letters of `result`; equal letters have equal extents, and none appears twice in a word."""
    extents: dict[str, int] = {}
    left, right, result = node.text("left"), node.text("right"), node.text("result")
    for word, operand in zip((left, right), operands, strict=True):
        if len(word) != len(operand.shape):
            raise misfit(node, operands, f"{word!r} needs a letter for each dimension")
        for letter, extent in zip(word, operand.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise misfit(node, operands, f"{letter!r} stands for both {extents[letter]} and {extent} elements")
    if any(len(set(word)) != len(word) for word in (left, right, result)) or not set(result) <= set(extents):
        raise misfit(node, operands, f"{left},{right}->{result} repeats a letter or invents one")
    if any(letter not in result and not (letter in left and letter in right) for letter in extents):
        raise misfit(node, operands, f"{left},{right}->{result} sums over a letter that one operand lacks")
    if operands[0].dtype != operands[1].dtype:
        raise misfit(node, operands, "the operands have different dtypes")
    return tuple(extents[letter] for letter in result), operands[0].dtype


def _check_bytes(node: Node, operands: Sequence[Value]) -> tuple[Value, ...]:
    """The operands of a product of bytes as ones of one dtype, for the rules of other products."""
    if any(operand.dtype not in ("int8", "uint8") for operand in operands):
        raise misfit(node, operands, "the operands must be bytes")
    return tuple(Value(operand.name, operand.shape, "int32") for operand in operands)


def byte_product(node: Node, operands: Sequence[Value]) -> Result:
    """Matrix products of bytes of any signs give int32."""
    return (batch_matmul if node.op == "qbatch_matmul" else dense)(node, _check_bytes(node, operands))


def byte_convolution(node: Node, operands: Sequence[Value]) -> Result:
    """A convolution of bytes of any signs gives int32. Up to three channels that only the weight has are padding."""
    limits = (-128, 127) if operands[0].dtype == "int8" else (0, 255)
    if not limits[0] <= node.integer("pad_value") <= limits[1]:
        raise misfit(node, operands, f"pad_value {node.integer('pad_value')} is no {operands[0].dtype}")
    x, weight = _check_bytes(node, operands)
    channel, taken = (1, 1) if node.text("layout").startswith("NC") else (len(x.shape) - 1, -2)
    if node.integer("groups") == 1 and len(weight.shape) == len(x.shape):
        missing = weight.shape[taken] - x.shape[channel]
        if 0 < missing < 4:
            filled = (*x.shape[:channel], weight.shape[taken], *x.shape[channel + 1 :])
            x = Value(x.name, filled, x.dtype)
    return convolution(node, [x, weight])


def _check_scale(node: Node, operands: Sequence[Value]) -> None:
    x, scale, zero = operands
    axis = node.integer("axis")
    sizes = {(), (1,)} | ({(x.shape[axis],)} if 0 <= axis < len(x.shape) else set())
    if scale.shape not in sizes or zero.shape not in sizes or not scale.dtype.startswith("float"):
        raise misfit(node, operands, f"needs one float scale and zero point, or one for each place of axis {axis}")


def quantize(node: Node, operands: Sequence[Value]) -> Result:
    """Floats in the dtype of the zero point."""
    _check_scale(node, operands)
    if operands[0].dtype != operands[1].dtype:
        raise misfit(node, operands, "the scale must have the dtype of the numbers")
    return operands[0].shape, operands[2].dtype


def dequantize(node: Node, operands: Sequence[Value]) -> Result:
    """Whole numbers in the dtype of the scale."""
    _check_scale(node, operands)
    if operands[0].dtype != operands[2].dtype:
        raise misfit(node, operands, "the zero point must have the dtype of the numbers")
    return operands[0].shape, operands[1].dtype


def _spatial_axes(node: Node, operands: Sequence[Value]) -> tuple[int, ...]:
    volume = node.op == "conv3d"
    if len(operands[0].shape) != 4 + volume:
        raise misfit(node, operands, f"the first operand must have {'five' if volume else 'four'} dimensions")
    first, last = ("NCDHW", "NDHWC") if volume else ("NCHW", "NHWC")
    layout = node.text("layout")
    if layout not in (first, last):
        raise misfit(node, operands, f"layout {layout!r} is neither {first} nor {last}")
    return tuple(range(2, 4 + volume)) if layout == first else tuple(range(1, 3 + volume))


def _windows(node: Node, operands: Sequence[Value], kernel: tuple[int, ...], dilations: tuple[int, ...]) -> list[int]:
    axes = _spatial_axes(node, operands)
    strides, pads, rank = node.ints("strides"), node.ints("pads"), len(axes)
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise misfit(node, operands, f"the window, strides, dilations and pads must be for {rank} dimensions")
    extents = [
        window_extent(operands[0].shape[axes[i]], kernel[i], strides[i], dilations[i], pads[i], pads[rank + i])
        for i in range(rank)
    ]
    if min(extents) < 1:
        raise misfit(node, operands, f"the window {kernel} does not fit")
    return extents


def conv_transpose2d(node: Node, operands: Sequence[Value]) -> Result:
    """Transposed convolution in either layout; pads behind may be negative, where the result goes on."""
    x, weight = operands
    rows, columns = _spatial_axes(node, operands)
    channels_first = rows == 2
    if len(weight.shape) != 4 or weight.dtype != x.dtype:
        raise misfit(node, operands, "the weight must have four dimensions and the dtype of the first operand")
    taken, made, *kernel = weight.shape if channels_first else (*weight.shape[2:], *weight.shape[:2])
    strides, pads = node.ints("strides"), node.ints("pads")
    if len(strides) != 2 or len(pads) != 4 or min(*strides, pads[0] + 1, pads[1] + 1) < 1:
        raise misfit(node, operands, "strides and the pads in front must be for two dimensions and not be negative")
    if x.shape[1 if channels_first else 3] != taken:
        raise misfit(node, operands, f"the weight is for {taken} channels")
    extents = tuple(
        (x.shape[axis] - 1) * strides[i] + kernel[i] - pads[i] - pads[2 + i] for i, axis in enumerate((rows, columns))
    )
    if min(extents) < 1:
        raise misfit(node, operands, "nothing is left of the result")
    return ((x.shape[0], made, *extents) if channels_first else (x.shape[0], *extents, made)), x.dtype


def phased_convolution(node: Node, operands: Sequence[Value]) -> Result:
    """A transposed convolution by phases: `size` elements of each, a weight with as many taps for every phase."""
    x, weight = operands
    strides, size = node.ints("strides"), node.ints("size")
    if node.text("layout") != "NHWC" or not len(strides) == len(size) == len(node.ints("pads")) == 2:
        raise misfit(node, operands, "the layout must be NHWC, strides, pads and size two numbers each")
    if min(*strides, *size, *(cut + 1 for cut in node.ints("pads"))) < 1:
        raise misfit(node, operands, "strides and size must be positive, pads must not be negative")
    fits = len(x.shape) == len(weight.shape) == 4 and weight.dtype == x.dtype and weight.shape[2] == x.shape[3]
    if not fits or any(taps % stride for taps, stride in zip(weight.shape, strides, strict=False)):
        raise misfit(node, operands, "the weight must be (KH, KW, I, O), the strides divide KH and KW")
    return (x.shape[0], size[0], strides[0], size[1], strides[1], weight.shape[3]), x.dtype


def convolution(node: Node, operands: Sequence[Value]) -> Result:
    """Convolution in either layout; the weight's axes are given with the operator in `retune.compiler.graph.ops`."""
    x, w = operands
    groups = node.integer("groups")
    rank = len(_spatial_axes(node, operands))
    if node.text("layout").startswith("NC"):
        channels = x.shape[1]
        fits = len(w.shape) == rank + 2 and w.shape[1] * groups == channels and w.shape[0] % groups == 0
        if not fits:
            raise misfit(node, operands, f"the weight must be (O, I/{groups}, KH, KW)")
        extents = _windows(node, operands, w.shape[2:], node.ints("dilations"))
        return (x.shape[0], w.shape[0], *extents), x.dtype
    channels = x.shape[-1]
    if len(w.shape) == rank + 1:
        if not groups == channels == w.shape[-1]:
            raise misfit(node, operands, "a depthwise weight must be (KH, KW, C) with one group a channel")
    elif len(w.shape) != rank + 2 or w.shape[-2] * groups != channels or w.shape[-1] % groups:
        raise misfit(node, operands, f"the weight must be (KH, KW, I/{groups}, O)")
    extents = _windows(node, operands, w.shape[:rank], node.ints("dilations"))
    return (x.shape[0], *extents, w.shape[-1]), x.dtype


def winograd_convolution(node: Node, operands: Sequence[Value]) -> Result:
    """A 3x3 convolution of stride 1 whose weight is (tile + 2, tile + 2, I, O)."""
    x, w = operands
    tile, pads = node.integer("tile"), node.ints("pads")
    if len(x.shape) != 4 or len(pads) != 4 or w.shape[:-1] != (tile + 2, tile + 2, x.shape[3]):
        raise misfit(node, operands, f"the weight must be ({tile + 2}, {tile + 2}, I, O), the pads four numbers")
    extents = [window_extent(x.shape[1 + i], 3, 1, 1, pads[i], pads[2 + i]) for i in range(2)]
    if min(extents) < 1:
        raise misfit(node, operands, "the window (3, 3) does not fit")
    return (x.shape[0], *extents, w.shape[3]), x.dtype


def pool2d(node: Node, operands: Sequence[Value]) -> Result:
    """Max and average pooling in either layout."""
    (x,) = operands
    dilations = node.ints("dilations") if "dilations" in node.attrs else (1, 1)
    height, width = _windows(node, operands, node.ints("kernel"), dilations)
    if node.text("layout") == "NCHW":
        return (x.shape[0], x.shape[1], height, width), x.dtype
    return (x.shape[0], height, width, x.shape[3]), x.dtype


def batch_norm(node: Node, operands: Sequence[Value]) -> Result:
    """The first operand's shape; the other four have one element a channel."""
    x, *statistics = operands
    axis = node.integer("axis")
    if not 0 <= axis < len(x.shape) or any(s.shape != (x.shape[axis],) for s in statistics):
        raise misfit(node, operands, f"scale, bias, mean and variance need one element for each of axis {axis}")
    return x.shape, x.dtype


def reshape(node: Node, operands: Sequence[Value]) -> Result:
    """The shape of `shape`, which has as many elements."""
    (x,) = operands
    shape = node.ints("shape")
    if Value("", shape).size != x.size or any(n < 0 for n in shape):
        raise misfit(node, operands, f"cannot become {list(shape)}")
    return shape, x.dtype


def transpose(node: Node, operands: Sequence[Value]) -> Result:
    """Output axis i is input axis perm[i]."""
    (x,) = operands
    perm = node.ints("perm")
    if sorted(perm) != list(range(len(x.shape))):
        raise misfit(node, operands, f"perm {perm} is no permutation of its axes")
    return tuple(x.shape[axis] for axis in perm), x.dtype


def concat(node: Node, operands: Sequence[Value]) -> Result:
    """All extents but that of `axis` agree; that one is the sum."""
    axis, first = node.integer("axis"), operands[0]
    if not 0 <= axis < len(first.shape):
        raise misfit(node, operands, f"axis {axis} is outside the rank")
    for other in operands[1:]:
        alike = len(other.shape) == len(first.shape) and other.dtype == first.dtype
        if not alike or any(a != b for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)) if i != axis):
            raise misfit(node, operands, f"the operands may differ in axis {axis} alone")
    extent = sum(operand.shape[axis] for operand in operands)
    return (*first.shape[:axis], extent, *first.shape[axis + 1 :]), first.dtype


def slice_(node: Node, operands: Sequence[Value]) -> Result:
    """Axis i keeps starts[i], starts[i] + steps[i], ... below stops[i]."""
    (x,) = operands
    starts, stops, steps = node.ints("starts"), node.ints("stops"), node.ints("steps")
    if not len(starts) == len(stops) == len(steps) == len(x.shape):
        raise misfit(node, operands, "starts, stops and steps need one entry an axis")
    for extent, start, stop, step in zip(x.shape, starts, stops, steps, strict=True):
        if not (0 <= start <= stop <= extent and step >= 1):
            raise misfit(node, operands, f"cannot slice {extent} elements from {start} to {stop} by {step}")
    return tuple(-((start - stop) // step) for start, stop, step in zip(starts, stops, steps, strict=True)), x.dtype


def pad(node: Node, operands: Sequence[Value]) -> Result:
    """Axis i grows by pads_before[i] + pads_after[i]."""
    (x,) = operands
    before, after = node.ints("pads_before"), node.ints("pads_after")
    if not len(before) == len(after) == len(x.shape) or min((*before, *after), default=0) < 0:
        raise misfit(node, operands, "pads_before and pads_after need one entry an axis, none negative")
    return tuple(n + b + a for n, b, a in zip(x.shape, before, after, strict=True)), x.dtype


def broadcast_to(node: Node, operands: Sequence[Value]) -> Result:
    """The shape of `shape`, to which the operand broadcasts."""
    (x,) = operands
    shape = node.ints("shape")
    if broadcast_shapes(x.shape, shape) != shape:
        raise misfit(node, operands, f"does not broadcast to {list(shape)}")
    return shape, x.dtype
