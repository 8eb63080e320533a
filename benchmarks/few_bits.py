"""Products with 4-bit weights beside ONNX Runtime's: bytes of weights a second, in one process and in turn.

    python -m benchmarks.few_bits [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--size N] [--layers N]

A case is a chain of MatMulNBits (`--size` squared, blocks of 32, no zero points) with 1, 8 and 128 rows: with one row
each weight is read once, as in a step of decoding. `onnxruntime-0` computes in float32, `onnxruntime-4`
in int8, Retune in float32. `error` is relative to `onnxruntime-0`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import retune
from benchmarks.harness import Figure, interleaved, parse
from retune.compiler.tune.onnx_runtime import OnnxRuntime

Array = NDArray[np.float32]
BLOCK, BITS, ROWS = 32, 4, (1, 8, 128)
PASS_SECONDS = 0.05


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every case."""
    options = {"size": (4096, "rows and columns of a matrix of weights"), "layers": (6, "products of a chain")}
    run = parse(__doc__, argv, seconds=2.0, seconds_help="seconds of timing a case", threads=(1, 2), options=options)
    size, layers = run.options["size"], run.options["layers"]
    for rows in ROWS:
        for threads in run.threads:
            if run.wants(f"rows{rows}"):
                run.write_all(_figures(rows, size, layers, threads, run.seconds))


def _figures(rows: int, size: int, layers: int, threads: int, seconds: float) -> Iterator[Figure]:
    x = np.random.default_rng(1).standard_normal((rows, size)).astype(np.float32)
    network = retune.compile(chain(rows, size, layers, 0), threads=threads)
    sessions = {level: OnnxRuntime(chain(rows, size, layers, level).SerializeToString(), threads) for level in (0, 4)}
    contenders: dict[str, Callable[[], object]] = {
        "retune": lambda: network(x),
        **{f"onnxruntime-{level}": partial(session.run, {"x0": x}) for level, session in sessions.items()},
    }
    expected = sessions[0].run({"x0": x})[0]
    error = float(np.abs(np.asarray(network(x)) - expected).max() / np.abs(expected).max())
    taken = interleaved(contenders, passes=max(5, round(seconds / PASS_SECONDS / 3)), pass_seconds=PASS_SECONDS)
    read = layers * size * size * (BITS / 8 + 4 / BLOCK)
    for backend, duration in taken.items():
        details = {
            "ms": round(duration * 1e3, 3),
            "gflops": round(2e-9 * rows * size * size * layers / duration, 1),
            "ratio": round(duration / taken["retune"], 2),
        }
        speed, own = read / duration / 1e9, error if backend == "retune" else None
        yield Figure(f"rows{rows}", backend, threads, "weights", speed, "GB/s", error=own, details=details)


def chain(rows: int, size: int, layers: int, level: int) -> onnx.ModelProto:
    """Products one after another, with random weights whose results keep their size."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    attributes: dict[str, Any] = {"K": size, "N": size, "bits": BITS, "block_size": BLOCK, "accuracy_level": level}
    for layer in range(layers):
        codes = rng.integers(0, 256, (size, size // BLOCK, BLOCK * BITS // 8), dtype=np.uint8)
        scales = rng.uniform(0.1, 0.3, size * size // BLOCK).astype(np.float32) / np.float32(size**0.5)
        weights += [numpy_helper.from_array(codes, f"w{layer}"), numpy_helper.from_array(scales, f"s{layer}")]
        operands = [f"x{layer}", f"w{layer}", f"s{layer}"]
        nodes.append(helper.make_node("MatMulNBits", operands, [f"x{layer + 1}"], domain="com.microsoft", **attributes))
    ends = [helper.make_tensor_value_info(f"x{end}", TensorProto.FLOAT, (rows, size)) for end in (0, layers)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


if __name__ == "__main__":
    main()
