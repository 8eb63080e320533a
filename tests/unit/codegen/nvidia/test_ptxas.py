"""What NVIDIA's assembler says of kernels, read; and, where there is one, asked."""

import re
import shutil

import pytest

from retune.compiler.codegen.nvidia import ptxas
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.codegen.nvidia.ptxas import Assembled, KernelResources, assemble, assemble_roomy, resources_in
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.model import RandomModel
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.gpu.spills import spilled_bytes
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from tests.support.ptx.assembler import tiled
from tests.support.small_computations import fetched_product
from tests.support.workloads import GPU, gpu_task_of, matmul

SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k_kernel0' for 'sm_80'
ptxas info    : Function properties for k_kernel0
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 26 registers, used 1 barriers, 16 bytes smem, 376 bytes cmem[0]
ptxas info    : Compile time = 2.000 ms
ptxas info    : Compiling entry function 'k_kernel1' for 'sm_80'
ptxas info    : Function properties for k_kernel1
    120 bytes stack frame, 100 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 255 registers, 352 bytes cmem[0]
"""

needs_assembler = pytest.mark.skipif(shutil.which("ptxas") is None, reason="there is no ptxas on the path")


def test_what_the_assembler_says_is_read() -> None:
    first, second = resources_in(SAID)
    assert first == KernelResources("k_kernel0", 26, 0, 0, 16)
    assert second == KernelResources("k_kernel1", 255, 100, 120, 0)
    assert second.spilled_bytes == 120
    assert resources_in("") == ()


@needs_assembler
def test_machine_code_and_what_it_takes() -> None:
    text = ptx(lower_for_gpu(fetched_product(), "k", GPU), Target("cuda", arch="sm_80"))
    made = assemble(text, "sm_80")
    assert made.code[:4] == b"\x7fELF"
    (kernel,) = made.kernels
    assert kernel.name == "k_kernel0"
    assert kernel.shared == 16
    assert 8 <= kernel.registers <= 64
    assert (kernel.spilled_bytes, made.spilled_bytes) == (0, 0)


@needs_assembler
def test_assembler_errors_are_quoted() -> None:
    with pytest.raises(LoweringError, match=r"ptxas refuses the code for sm_80: .*(syntax|Parsing|fatal)"):
        assemble(".version 7.0\n.target sm_80\n.address_size 64\nnonsense", "sm_80")


def test_without_an_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "assembler", lambda: None)
    with pytest.raises(LoweringError, match="no ptxas on the path"):
        assemble("", "sm_80")


@needs_assembler
def test_a_built_program_carries_what_its_kernels_take() -> None:
    task, steps = tiled(4)
    artifact = build_kernel(task, steps, "k")
    assert artifact.device is not None
    assert artifact.device.kind == "cubin"
    assert ".version" in artifact.device.ptx
    assert artifact.device.launches[0].registers > 0
    plain = build_kernel(*tiled(4, "cuda"), "k")
    assert plain.device is not None
    assert plain.device.kind == "ptx"
    assert b".visible .entry k_kernel0" in plain.object_code


@needs_assembler
def test_what_the_assembler_has_dropped_is_left_to_the_driver() -> None:
    """Every `ptxas` knows sm_80; none since 13.0 makes code for sm_70."""
    assert ptxas.assembles("sm_80")
    assert not ptxas.assembles("sm_999")
    assert not ptxas.assembles("nothing")


def test_a_program_for_an_old_gpu_is_built_where_the_assembler_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    task, steps = tiled(4, "cuda -arch=sm_70")
    monkeypatch.setattr(ptxas, "_knows", lambda _, arch: arch != "sm_70")
    artifact = build_kernel(task, steps, "k")
    assert artifact.device is not None
    assert artifact.device.kind == "ptx"
    assert b".target sm_70" in artifact.object_code
    assert spilled_bytes(task, steps) == 0


@needs_assembler
def test_blocks_that_must_fit_bound_the_registers() -> None:
    """Launch bounds: the code says how many threads a block has, and how many blocks there is to be room for."""
    text = ptx(lower_for_gpu(fetched_product(), "k", GPU), Target("cuda", arch="sm_90"))
    assert ".maxntid 16" in text
    assert ".minnctapersm 8" in text


def bounds_of(text: str) -> list[int]:
    """For how many blocks a multiprocessor is to have room."""
    return [int(blocks) for blocks in re.findall(r"\.minnctapersm (\d+)", text)]


@needs_assembler
def test_two_blocks_of_eight_warps_with_64_sums_a_thread_fit() -> None:
    """128 registers each are enough for them."""
    task, steps = tiled(8)
    text = ptx(lower_for_gpu(replay(task.dag, steps), "k", GPU), task.target)
    assert bounds_of(text) == [8]  # of two warps each
    (kernel,) = assemble(text, "sm_80").kernels
    assert kernel.registers <= 128
    assert kernel.spilled_bytes == 0


@needs_assembler
def test_rather_than_keep_registers_in_memory_there_is_room_for_fewer_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 blocks of two warps each thread has 32 registers, which a tile of 4 x 4 needs more of."""
    task, steps = tiled(4)
    text = ptx(lower_for_gpu(replay(task.dag, steps), "k", GPU), task.target)
    crowded = re.sub(r"\.minnctapersm \d+", ".minnctapersm 32", text)
    assert crowded != text
    taken: list[str] = []

    def noted(given: str, arch: str) -> Assembled:
        taken.append(given)
        return assemble(given, arch)

    monkeypatch.setattr(ptxas, "assemble", noted)
    assert assemble(crowded, "sm_80").spilled_bytes > 0
    assert assemble_roomy(crowded, "sm_80").spilled_bytes == 0
    (before,), (after,) = map(bounds_of, taken)
    assert before == 32 > after >= 4
    taken.clear()
    assert assemble_roomy(text, "sm_80").spilled_bytes == 0
    assert taken == [text]  # nothing was spilled, so nothing is tried


def test_only_kernels_that_spill_and_can_have_more_get_room(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = "\n".join(f".visible .entry {name}()\n.maxntid 224, 1, 1\n.minnctapersm 4\n{{\n}}" for name in "abc")
    taken: list[str] = []

    def said(text: str, _: str) -> Assembled:
        taken.append(text)
        spills = (("a", 72, 184), ("b", 72, 0), ("c", 255, 100))
        return Assembled(b"", tuple(KernelResources(name, many, out, out, 0) for name, many, out in spills))

    monkeypatch.setattr(ptxas, "assemble", said)
    assert assemble_roomy(entries, "sm_90").spilled_bytes == 284
    assert [bounds_of(text) for text in taken] == [[4, 4, 4], [2, 4, 4]]


@needs_assembler
def test_programs_that_spill_are_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = gpu_task_of("m", matmul(64, 64, 64))
    looked: list[int] = []

    def spilled(_: SearchTask, steps: object) -> int:
        looked.append(len(str(steps)))
        return 8 if len(looked) % 2 else 0

    monkeypatch.setattr("retune.compiler.search.policy.spilled_bytes", spilled)
    options = SearchOptions(population=64, generations=1, eps_greedy=0.0, refuse_spills=0)
    assert len(SketchPolicy(task, RandomModel(), options).ask(4, 0)) == 4
    assert len(looked) > 4  # every other one was left out
    allowed = len(looked)
    SketchPolicy(task, RandomModel(), SearchOptions(population=64, generations=1)).ask(4, 0)
    assert len(looked) == allowed  # nobody looks unless asked to


@pytest.mark.long
@needs_assembler
def test_threads_that_hold_too_much_keep_it_in_memory() -> None:
    assert spilled_bytes(*tiled(4)) == 0
    assert spilled_bytes(*tiled(32)) >= 32 * 32 * 4 - 255 * 4
