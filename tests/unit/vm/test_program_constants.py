"""Weights of a network of dynamic shapes are in its file once, and any shape gets them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from retune.compiler import vm
from retune.compiler.core.errors import ArtifactError, MachineError
from retune.compiler.core.packing import Packing
from retune.compiler.runtime.archive import archive_bytes
from retune.compiler.vm.library import VERSION
from retune.compiler.vm.program_constants import ProgramConstants, store_packed
from retune.compiler.vm.saved_program import program_parts
from tests.support.dynamic_models import INT64, Array, floats, model, node, reference, tensor

WEIGHTS = {"table": floats(300, 96), "w": floats(96, 160), "v": floats(160, 96)}
BYTES = sum(array.nbytes for array in WEIGHTS.values())


def network() -> onnx.ModelProto:
    """A table that is read as it is, and two products, whose weights kernels read packed."""
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("MatMul", ["rows", "w"], ["up"]),
        node("Relu", ["up"], ["positive"]),
        node("MatMul", ["positive", "v"], ["y"]),
    ]
    return model(nodes, [tensor("ids", ["b", "n"], INT64)], [tensor("y", ["b", "n", 96])], WEIGHTS)


@pytest.fixture(scope="module")
def exe() -> vm.Executable:
    return vm.compile(network(), threads=1)


def ids(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).integers(0, 300, shape)


def check(exe: vm.Executable, **options: Any) -> None:
    machine = vm.VirtualMachine(exe, options=vm.VMOptions(**options))
    for shape in ((2, 7), (1, 1)):
        (expected,) = reference(network(), {"ids": ids(*shape)})
        np.testing.assert_allclose(machine.run(ids(*shape)), expected, rtol=1e-4, atol=1e-4)


def test_a_file_has_each_weight_once(exe: vm.Executable, tmp_path: Path) -> None:
    path = exe.export_library(tmp_path / "net.retune")
    assert exe.per_shape == {}
    assert path.stat().st_size < 1.3 * BYTES
    check(vm.Executable.load(path))


@pytest.mark.parametrize("policy", ["now", "never"])
def test_a_shape_without_kernels_gets_the_weights_unpacked(exe: vm.Executable, tmp_path: Path, policy: str) -> None:
    loaded = vm.Executable.load(exe.export_library(tmp_path / "net.retune"))
    assert isinstance(loaded.program.constants, ProgramConstants)
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(loaded.program.constants[name], array)
    check(loaded, specialize=policy)


def test_weights_that_are_bound_late_are_there_again(exe: vm.Executable) -> None:
    code, library = exe.save()
    loaded = vm.Executable.load_exec(code, library)
    taken = loaded.get_late_bound_consts(1 << 10)
    assert sum(array.nbytes for array in taken.values()) < 1.3 * BYTES
    code, library = loaded.save()
    bare = vm.Executable.load_exec(code, library)
    with pytest.raises(MachineError, match="bound late"):
        vm.VirtualMachine(bare).run(ids(1, 2))
    bare.load_late_bound_consts_from_map(taken)
    check(bare)
    check(bare, specialize="now")


def test_only_equal_elements_are_taken_from_a_packed_constant() -> None:
    packing = Packing((4, 8, 16), (1, 0, 2))
    padded = Packing((2, 9, 64), (1, 0, 2), (17, 64))
    w, other, far = floats(32, 16), floats(32, 16) + 1, floats(17, 64)
    constants = {"w": w, "other": other, "read": w.copy(), "far": far, "p": packing.pack(w), "q": padded.pack(far)}
    stored = store_packed(constants, {"p": packing, "q": padded}, {"read"})
    assert isinstance(stored, ProgramConstants)
    assert set(stored.unpacked) == {"w", "far"}
    assert set(stored) == set(constants)
    for name, array in constants.items():
        np.testing.assert_array_equal(stored[name], array)
    assert store_packed(constants, {}, set()) is constants


@pytest.mark.parametrize(
    "row",
    [
        ["w", "nothing", [160, 96], [0, 1], [], [160, 96]],
        ["w", "table", [160, 96], [0, 1], [], [160, 96]],
        ["table", "table", [300, 96], [0, 1], [], [300, 96]],
        ["w", "table", [300, 96], [0, 0], [], [300, 96]],
        ["w", "table", [300, 96], [0, 1], [], [300, 95]],
        ["w", "table", [300, -96], [0, 1], [], [300, -96]],
        ["w", "table", [300, "96"], [0, 1], [], [300, 96]],
    ],
)
def test_a_damaged_packing_is_refused(exe: vm.Executable, row: list[Any]) -> None:
    parts = program_parts(exe.program, {})
    head = {**parts["program.json"], "unpacked": [row]}  # type: ignore[dict-item]
    with pytest.raises(ArtifactError):
        vm.Executable.load_exec(archive_bytes("program", VERSION, {**parts, "program.json": head}), exe.lib)
