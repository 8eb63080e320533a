"""Recurrent networks as ONNX models: LSTM and GRU, a recognizer of text lines, a voice-activity detector with state."""

from math import sqrt

import numpy as np
import onnx

from benchmarks.zoo.layers import LayerWriter

_GATES = {"LSTM": 4, "GRU": 3}


def lstm(
    *,
    batch: int | str = 1,
    steps: int | str = 50,
    width: int = 128,
    layers: int = 2,
    bidirectional: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """Input `input` (steps, batch, width), output `states` (steps, batch, width); in both directions twice as wide."""
    return _stack("LSTM", (batch, steps, width), layers, bidirectional, seed)


def gru(
    *, batch: int | str = 1, steps: int | str = 60, width: int = 128, layers: int = 1, seed: int = 0
) -> onnx.ModelProto:
    """As `lstm`, with gated recurrent units in PyTorch's form, whose reset gate follows the product."""
    return _stack("GRU", (batch, steps, width), layers, False, seed)


def crnn(
    *, batch: int | str = 1, image: int | str = 100, classes: int = 37, width: int = 64, seed: int = 0
) -> onnx.ModelProto:
    """Input (batch, 1, 32, image), the picture of a line of text, output `scores` (columns, batch, classes).

    The network of Shi et al., "An End-to-End Trainable Neural Network for Image-based Sequence Recognition" (arXiv
    1507.05717); `width` is the number of channels of the first convolution.
    """
    write = LayerWriter("crnn", (batch, 1, 32, image), seed)
    x, taken = write.input, 1
    for number, (channels, pool) in enumerate(_CONVOLUTIONS):
        x = write.convolution(x, (taken, channels * width), 3, f"conv{number}")
        taken = channels * width
        x = write.node("Relu", [write.batch_norm(x, taken, f"norm{number}")], f"relu{number}")
        if pool:
            x = write.node("MaxPool", [x], f"pool{number}", kernel_shape=pool, strides=pool)
    # The last two rows become one.
    weight = write.normal((taken, taken, 2, 2), sqrt(1 / (2 * taken)), "conv6_weight")
    x = write.node("Relu", [write.node("Conv", [x, weight], "conv6", kernel_shape=[2, 2])], "relu6")
    row = write.node("Squeeze", [x, write.integers((2,), "row_axis")], "row")
    x = write.node("Transpose", [row], "columns", perm=[2, 0, 1])
    inner = 4 * width
    for layer, extent in enumerate((taken, inner)):
        states, *_ = _layer(write, "LSTM", x, (extent, inner), 2, f"lstm{layer}")
        x = write.linear(states, (2 * inner, classes if layer else inner), "scores" if layer else "between")
    return write.finish(x, ("columns" if isinstance(image, str) else image // 4 - 1, batch, classes))


# Channels as multiples of the first, and the pooling behind, (height, width).
_CONVOLUTIONS = ((1, (2, 2)), (2, (2, 2)), (4, None), (4, (2, 1)), (8, None), (8, (2, 1)))


def vad(
    *, batch: int | str = 1, samples: int | str = 4096, width: int = 128, window: int = 256, seed: int = 0
) -> onnx.ModelProto:
    """A detector of voices that keeps its state between calls: `width` filters of `window` samples, half a window
    apart, two convolutions, an LSTM and a score a frame.

    Inputs `input` (batch, samples), at least a window, and `hidden` and `cell` (1, batch, width), the state; outputs
    `voice` (batch, frames), probabilities, and `hidden_out` and `cell_out`.
    """
    write = LayerWriter("vad", None, seed)
    sound = write.feed("input", (batch, samples))
    state = [write.feed(name, (1, batch, width)) for name in ("hidden", "cell")]
    wave = write.node("Unsqueeze", [sound, write.integers((1,), "channel_axis")], "wave")
    filters = write.normal((width, 1, window), sqrt(1 / window), "filters")
    x = write.node("Conv", [wave, filters], "spectrum", kernel_shape=[window], strides=[window // 2])
    x = write.node("Abs", [x], "magnitudes")
    for number in range(2):
        weight = write.normal((width, width, 3), sqrt(2 / (3 * width)), f"conv{number}_weight")
        x = write.node("Conv", [x, weight], f"conv{number}", kernel_shape=[3], pads=[1, 1])
        x = write.node("Relu", [x], f"relu{number}")
    x = write.node("Transpose", [x], "frames", perm=[2, 0, 1])
    states, hidden, cell = _layer(write, "LSTM", x, (width, width), 1, "lstm", state=state)
    scores = write.node("Squeeze", [write.linear(states, (width, 1), "score"), write.integers((2,), "last")], "scores")
    voice = write.node("Transpose", [write.node("Sigmoid", [scores], "shares")], "voice", perm=[1, 0])
    frames = "frames" if isinstance(samples, str) else (samples - window) // (window // 2) + 1
    kept = (1, batch, width)
    return write.finish_all({voice: (batch, frames), hidden: kept, cell: kept})


def _stack(
    op: str, sizes: tuple[int | str, int | str, int], layers: int, bidirectional: bool, seed: int
) -> onnx.ModelProto:
    batch, steps, width = sizes
    write = LayerWriter(op.lower(), (steps, batch, width), seed)
    x, taken, directions = write.input, width, 1 + bidirectional
    for layer in range(layers):
        name = "states" if layer == layers - 1 else f"layer{layer}"
        x, *_ = _layer(write, op, x, (taken, width), directions, name)
        taken = directions * width
    return write.finish(x, (steps, batch, taken))


def _layer(
    write: LayerWriter,
    op: str,
    x: str,
    features: tuple[int, int],
    directions: int,
    name: str,
    *,
    state: list[str] | None = None,
) -> tuple[str, ...]:
    """A layer as PyTorch exports it: the states (steps, batch, directions · width), then the last state and cell.

    `features` is (in, width), `state` the first state and cell.
    """
    taken, width = features
    rows = _GATES[op] * width
    weights = [
        write.normal((directions, rows, extent), sqrt(1 / extent), f"{name}_{key}")
        for key, extent in (("input_weight", taken), ("state_weight", width))
    ]
    bias = write.weight(np.zeros((directions, 2 * rows), np.float32), f"{name}_zeros")
    form = {"direction": "bidirectional"} if directions > 1 else {}
    if op == "GRU":
        form["linear_before_reset"] = 1  # type: ignore[assignment]
    names = [f"{name}_apart", *(["hidden_out", "cell_out"] if state else [])]
    first = ["", *state] if state else []
    states, *last = write.nodes(op, [x, *weights, bias, *first], names, hidden_size=width, **form)
    together = write.node("Transpose", [states], f"{name}_turned", perm=[0, 2, 1, 3])
    shape = write.integers((0, 0, directions * width), f"{name}_shape")
    return write.node("Reshape", [together, shape], name), *last
