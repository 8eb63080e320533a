"""PTX of products on tensor cores: the instructions are there, and NVIDIA's tools take them."""

import re
from pathlib import Path

import pytest

from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.state import replay
from tests.support.ptx.assembler import ASSEMBLER, assembled
from tests.support.tensor_core_products import PRODUCTS, TF32, lowered, product, sampled, tensor_space, with_lengths
from tests.support.tiers import long_except

INSTRUCTIONS = {
    "f16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "bf16 by columns": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_code_has_the_instructions(name: str) -> None:
    dag = PRODUCTS[name]()
    text = ptx(lowered(dag, with_lengths(tensor_space(dag), depth=3)), TF32)
    assert INSTRUCTIONS[name] in text
    assert "cp.async.cg.shared.global" in text
    assert "cp.async.commit_group" in text
    assert re.search(r"cp\.async\.wait_group\s+1;", text)
    assert "ldmatrix.sync.aligned.m8n8.x4" in text
    assert (".trans" in text) == (name != "tf32")  # the rows of its right factor are loaded element by element
    rounded = re.findall(r"add\.s32 .*, 4096;", text)
    assert (len(rounded) > 0) == (name == "tf32")
    assert 2 * text.count("setp.nan.f32") == len(rounded)
    assert "ld.local" not in text
    assert "st.local" not in text


@pytest.mark.parametrize("arch", long_except(["sm_80"], ["sm_80", "sm_89", "sm_90"]))
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_usual_tiles_are_assembled_without_spills(name: str, arch: str, tmp_path: Path) -> None:
    """64 x 64 a warp (of tf32 64 x 32) in blocks of four warps, for a matmul of 512."""
    dtype = {"f16": "float16", "bf16 by columns": "bfloat16", "tf32": "float32"}[name]
    dag = product(512, 512, 512, dtype, turned="AB" if "columns" in name else "")
    columns = 32 if name == "tf32" else 64
    lengths = {"rows": 64, "columns": columns, "row_warps": 2, "column_warps": 2, "steps": 2}
    function = lowered(dag, with_lengths(tensor_space(dag), **lengths))
    said = assembled(ptx(function, Target("cuda", arch=arch, math="tf32")), tmp_path, arch)
    if ASSEMBLER is not None:
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
        registers = re.search(r"Used (\d+) registers", said)
        assert registers is not None
        assert 2 * columns <= int(registers[1]) <= 255  # the sums alone are so many


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_tiles_beyond_48_kib_are_in_memory_that_the_launch_gives(arch: str, tmp_path: Path) -> None:
    dag, target = product(512, 512, 512), Target("cuda", arch=arch)
    hardware = hardware_of(target, 1)
    lengths = {"rows": 64, "columns": 64, "row_warps": 2, "column_warps": 2, "steps": 2, "depth": 4}
    steps = with_lengths(tensor_space(dag, target, hardware), **lengths)
    function = lower_for_gpu(replay(dag, steps), "k", hardware, check=True)
    (kernel,) = function.kernels
    assert kernel.dynamic_shared == kernel.bytes_of("shared") == 4 * 2 * (128 * (32 + 8) + 32 * (128 + 8))
    text = ptx(function, target)
    assert re.findall(r"\.shared .*;", text) == [".shared .align 1024 .b8 launched_shared[];"]
    said = assembled(text, tmp_path, arch)
    assert "bytes smem" not in said  # nothing of it is in the code


@pytest.mark.parametrize("name", long_except(["f16", "tf32 by columns", "conv2d with stride"], PRODUCTS))
def test_every_product_is_assembled(name: str, tmp_path: Path) -> None:
    dag = PRODUCTS[name]()
    for steps in sampled(tensor_space(dag), 1, seed=5):
        assembled(ptx(lowered(dag, steps), TF32), tmp_path, "sm_80")


def test_a_gpu_without_tensor_cores_is_refused() -> None:
    dag = PRODUCTS["f16"]()
    with pytest.raises(LoweringError, match="k: uses tensor cores as GPUs from sm_80 on have them, not sm_75"):
        ptx(lowered(dag, with_lengths(tensor_space(dag))), Target("cuda -arch=sm_75"))


def test_a_strict_target_rounds_nothing() -> None:
    """A program of another target's records, say."""
    dag = PRODUCTS["tf32"]()
    with pytest.raises(
        LoweringError, match="k: rounds float32 to tf32, which the target cuda -arch=sm_80 does not allow"
    ):
        ptx(lowered(dag, with_lengths(tensor_space(dag))), Target("cuda -arch=sm_80"))
