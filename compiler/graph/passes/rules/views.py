"""Reshapes and slices of values, for the rules and passes that build graphs."""

from retune.compiler.graph.builder import GraphBuilder


def reshape(builder: GraphBuilder, name: str, shape: tuple[int, ...]) -> str:
    """The value reshaped to `shape`; the value itself if it has that shape."""
    if builder.value(name).shape == shape:
        return name
    return builder.emit("reshape", [name], {"shape": shape}, output=name)


def cut(builder: GraphBuilder, x: str, axis: int, start: int, stop: int) -> str:
    """The range start to stop of `x` along `axis`."""
    shape = builder.value(x).shape
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    attrs = {"starts": tuple(starts), "stops": tuple(stops), "steps": (1,) * len(shape)}
    return builder.emit("slice", [x], attrs, output=f"{x}_part")
