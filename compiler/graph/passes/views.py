"""Reshapes and slices of values, for the rules and passes that build graphs."""

from retune.compiler.graph.builder import GraphBuilder


def reshaped(builder: GraphBuilder, name: str, shape: tuple[int, ...]) -> str:
    """A value in another shape; the value itself where it has that."""
    if builder.value(name).shape == shape:
        return name
    return builder.emit("reshape", [name], {"shape": shape}, output=name)


def cut(builder: GraphBuilder, x: str, axis: int, start: int, stop: int) -> str:
    """The part of `x` from start to stop along an axis."""
    shape = builder.value(x).shape
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    attrs = {"starts": tuple(starts), "stops": tuple(stops), "steps": (1,) * len(shape)}
    return builder.emit("slice", [x], attrs, output=f"{x}_part")
