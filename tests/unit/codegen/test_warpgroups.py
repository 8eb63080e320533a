"""PTX of products of warpgroups: the instructions are there, and NVIDIA's tools take them."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.codegen.nvidia.ptxas import assembler, assembles
from retune.compiler.codegen.nvidia.warpgroup import descriptor_bits
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.gpu_facts import GROUP_ARCH
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.ir.tensor_core import GroupLayout
from tests.support.ptx.assembler import assembled
from tests.support.tensor_core_products import WARPGROUPS, lowered, product, tensor_space, with_lengths

HARDWARE = hardware_of(WARPGROUPS, 1)
needs_assembler = pytest.mark.skipif(
    assembler() is None or not assembles(GROUP_ARCH), reason=f"there is no ptxas that knows {GROUP_ARCH}"
)


def kernel(
    dtype: str = "float16", turned: str = "", size: int = 256, lengths: Mapping[str, int] | None = None
) -> DeviceFunction:
    dag = product(size, size, size, dtype, turned=turned)
    usual = {"rows": 32, "row_warps": 4, "columns": 64, "column_warps": 1, "steps": 2, "depth": 4}
    return lowered(dag, with_lengths(tensor_space(dag, WARPGROUPS, HARDWARE), **{**usual, **(lengths or {})}), HARDWARE)


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "f16"), ("bfloat16", "bf16")])
@pytest.mark.parametrize(("turned", "transposed"), [("", "0, 1"), ("A", "1, 1"), ("B", "0, 0"), ("AB", "1, 0")])
def test_code_has_the_instructions(dtype: str, kind: str, turned: str, transposed: str) -> None:
    text = ptx(kernel(dtype, turned), WARPGROUPS)
    assert ".target sm_90a" in text
    multiplied = re.findall(rf"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.{kind}\.{kind} [^;]*;", text)
    assert len(multiplied) == 2 * 2  # fragments of rows, steps
    assert all(each.endswith(f", left, right, add, 1, 1, {transposed};") for each in multiplied)
    wanted = ["cp.async.wait_group", "wgmma.wait_group.sync.aligned 1", "bar.sync", "wgmma.fence"]
    places = [text.index(each) for each in wanted]
    assert places == sorted(places)
    assert "fence.proxy.async" not in text  # all is copied asynchronously
    assert "cp.async.cg.shared.global" in text
    assert "cp.async.ca" not in text
    assert "mma.sync" not in text
    assert ".local" not in text


@pytest.mark.parametrize(
    ("layout", "leading", "stride", "mode"),
    [
        (GroupLayout(128, 64, transposed=False), 128 * 128, 8 * 128, 1),
        (GroupLayout(64, 64, transposed=True), 64 * 128, 8 * 128, 1),
        (GroupLayout(128, 32, transposed=False), 128 * 64, 8 * 64, 2),
        (GroupLayout(32, 16, transposed=True), 32 * 32, 8 * 32, 3),
        (GroupLayout(32, 8, transposed=False), 32 * 16, 8 * 16, 0),
        (GroupLayout(32, 8, transposed=True), 8 * 16, 32 * 16, 0),
    ],
)
def test_a_descriptor_holds_distances_in_units_of_sixteen_bytes(
    layout: GroupLayout, leading: int, stride: int, mode: int
) -> None:
    assert descriptor_bits(layout, "float16") == (leading // 16) << 16 | (stride // 16) << 32 | mode << 62


@needs_assembler
@pytest.mark.parametrize(
    "lengths",
    [
        {"rows": 32, "row_warps": 4, "columns": 128, "column_warps": 2},  # 128 x 256
        {"rows": 32, "row_warps": 8, "columns": 128, "column_warps": 1},  # 256 x 128
        {"rows": 32, "row_warps": 4, "columns": 64, "column_warps": 2},  # 128 x 128
        {"rows": 32, "row_warps": 4, "columns": 128, "column_warps": 1},  # 128 x 128, by one warpgroup
        {"rows": 16, "row_warps": 4, "columns": 128, "column_warps": 2},  # 64 x 256
    ],
)
@pytest.mark.parametrize("depth", [3, 4])
def test_usual_tiles_are_assembled_without_spills_and_breaks(
    lengths: dict[str, int], depth: int, tmp_path: Path
) -> None:
    function = kernel(size=512, lengths={**lengths, "steps": 4, "depth": depth})
    said = assembled(ptx(function, WARPGROUPS), tmp_path, GROUP_ARCH)
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    # The assembler says so where it waits for each instruction of a warpgroup before the next.
    assert "serialized" not in said


def test_other_gpus_are_refused() -> None:
    function = kernel()
    for arch in ("sm_90", "sm_100"):
        with pytest.raises(LoweringError, match=f"multiplies with warpgroups, which only sm_90a has, not {arch}"):
            ptx(function, Target("cuda", arch=arch))
