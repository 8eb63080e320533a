"""Products with weights of a few bits compute their definition, and the weights stay packed in kernels and files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retune
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.pipeline import optimize
from retune.compiler.ops import few_bits
from tests.support.contributed.case import Case, Draw
from tests.support.tiers import long_rows

Array = np.ndarray[Any, Any]
_FORMS = [
    (bits, block, depth, columns)
    for bits in (2, 4, 8)
    for block in (16, 32, 128)
    for depth, columns in ((256, 64), (96, 33), (131, 5), (1, 17))
]
_QUICK = [(4, 32, 256, 64), (4, 16, 131, 5), (2, 32, 96, 33), (8, 128, 96, 33), (4, 128, 1, 17)]


def _codes(packed: Array, bits: int) -> Array:
    """The codes of each row of bytes, low bits first."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(packed.shape[0], -1).astype("float64")


def _case(draw: Draw, form: tuple[int, int, int, int], rows: int, *, zeros: str, grouped: bool) -> Case:
    bits, block, depth, columns = form
    blocks = -(-depth // block)
    operands: dict[str, Array | None] = {
        "a": draw.real(rows, depth),
        "b": draw.stored("uint8", columns, blocks, block * bits // 8),
        "scales": draw.scale(columns, blocks),
        "zeros": None,
        "groups": draw.rng.integers(0, blocks, depth).astype("int32") if grouped else None,
        "bias": draw.real(columns),
    }
    if zeros == "packed":
        operands["zeros"] = draw.stored("uint8", columns, -(-blocks * bits // 8))
    elif zeros == "floats":
        operands["zeros"] = draw.scale(columns, blocks, high=1 << bits)
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": 4}
    return Case("MatMulNBits", operands, attributes, constants=frozenset({"b", "scales", "zeros", "groups", "bias"}))


def _defined(case: Case) -> Array:
    """The definition, in float64."""
    values: dict[str, Any] = dict(case.operands)
    depth, block, bits = (case.attributes[key] for key in ("K", "block_size", "bits"))
    shape = values["scales"].shape
    zero = values["zeros"]
    zero = np.full(shape, 1 << (bits - 1)) if zero is None else zero
    zero = _codes(zero, bits)[:, : shape[1]] if zero.dtype == "uint8" else zero
    group = np.arange(depth) // block if values["groups"] is None else values["groups"]
    codes = _codes(values["b"].reshape(shape[0], -1), bits)[:, :depth]
    weight = (codes - zero[:, group]) * values["scales"].astype("float64")[:, group]
    return np.asarray(values["a"].astype("float64") @ weight.T + values["bias"])


def _error(case: Case, path: Path) -> float:
    """The largest error of the network, saved and loaded, relative to the largest result."""
    expected = _defined(case)
    retune.compile(case.model([expected.astype("float32")])).save(path)
    found = retune.load(path)(case.operands["a"])
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("bits", "block", "depth", "columns"), long_rows(_QUICK, _FORMS))
def test_products_with_packed_weights_compute_the_definition(
    bits: int, block: int, depth: int, columns: int, tmp_path: Path
) -> None:
    for seed, (rows, zeros, grouped) in enumerate(((1, "packed", False), (9, "floats", False), (3, "none", True))):
        case = _case(Draw(seed), (bits, block, depth, columns), rows, zeros=zeros, grouped=grouped)
        assert _error(case, tmp_path / "n.retune") < 1e-5


def test_zero_points_of_groups_are_those_of_the_group(tmp_path: Path) -> None:
    """ONNX Runtime 1.32 reads others."""
    assert _error(_case(Draw(0), (2, 16, 100, 20), 3, zeros="packed", grouped=True), tmp_path / "n.retune") < 1e-5


def test_a_wrong_shift_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(few_bits, "_shift", lambda p, bits: p * bits + 1)
    assert _error(_case(Draw(0), (4, 32, 64, 32), 2, zeros="none", grouped=False), tmp_path / "n.retune") > 1e-2


def test_weights_stay_packed_in_kernels_and_files(tmp_path: Path) -> None:
    case = _case(Draw(0), (4, 32, 1024, 512), 1, zeros="packed", grouped=False)
    model = case.model([np.zeros((1, 512), "float32")])
    network = compile_graph(optimize(load_model(model)), Target.host())
    held = sum(array.nbytes for array in network.constants.values())
    bytes_of_codes, bytes_of_scales = 1024 * 512 // 2, 1024 // 32 * 512 * 4
    assert bytes_of_codes <= held <= bytes_of_codes + 2 * bytes_of_scales + 4096
    retune.compile(model).save(tmp_path / "n.retune")
    assert (tmp_path / "n.retune").stat().st_size < 1.2 * held + 100_000
