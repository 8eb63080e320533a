"""Bounds from machine code: which pipe is the longest, and how often loops turn."""

import pytest

from benchmarks import gpu_code
from benchmarks.gpu_bounds import bound_of, cycles_of, hottest, kind_of, mix
from benchmarks.gpu_cases import GpuCase
from benchmarks.nvdisasm import Instruction, disassembler, kernels_in
from retune.compiler.codegen.nvidia.ptxas import assembles
from retune.compiler.core.gpu_facts import facts_of
from retune.compiler.ir.expr import Buffer, Load, Var
from retune.compiler.ir.kernel import Kernel
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind, Store
from retune.compiler.schedule.steps import load_steps

FFMA, LDS, IADD3 = Instruction("FFMA"), Instruction("LDS.128"), Instruction("IADD3")
LOOPS = """
.text.k:
        /*0000*/                   S2R R7, SR_TID.X ;
.L_x_1:
        /*0010*/                   LDG.E R4, desc[UR10][R4.64] ;
.L_x_0:
        /*0020*/                   FFMA R68, R5, R6, R68 ;
        /*0030*/                   FFMA R69, R5, R6, R69 ;
        /*0040*/               @P1 BRA `(.L_x_0) ;
        /*0050*/               @P0 BRA `(.L_x_1) ;
        /*0060*/                   EXIT ;
"""


def test_instructions_are_classed_by_name_and_width() -> None:
    """What moves memory is told apart by its width; what is not known is said to be other."""
    names = ("LDS.128", "LDGSTS.E.64", "UIADD3.X", "HFMA2.MMA", "STL", "FADD", "HMMA.16816.F32", "VOTE")
    kinds = ["lds128", "ldgsts64", "index", "index", "spill", "float", "hmma", "other"]
    assert [kind_of(Instruction(name)) for name in names] == kinds
    assert mix([FFMA, LDS, FFMA]) == {"ffma": 2, "lds128": 1}


def test_the_longest_pipe_bounds() -> None:
    """On 128 lanes every other instruction costs arithmetic; 64 lanes have an issue slot left for each."""
    hopper = cycles_of({FFMA: 60, IADD3: 20, LDS: 20}, facts_of("sm_90"))
    assert (hopper.issue, hopper.math, hopper.shared) == (100, 60, 80)
    assert hopper.share == pytest.approx(0.6)
    ampere = cycles_of({FFMA: 60, IADD3: 20, LDS: 20}, facts_of("sm_80"))
    assert ampere.share == 1.0
    crowded = cycles_of({FFMA: 60, LDS: 30}, facts_of("sm_90"))
    assert crowded.limits() == {"issue": 0.667, "floats": 1.0, "shared": 0.5}


def test_half_products_take_half_the_cycles_of_tf32() -> None:
    """Halves take half the time of tf32: of a matrix of 16 x 8 each does 16 or 8 deep."""
    halves = cycles_of({Instruction("HMMA.16816.F32"): 1}, facts_of("sm_80"))
    rounded = cycles_of({Instruction("HMMA.1688.F32.TF32"): 1}, facts_of("sm_80"))
    assert halves.math == rounded.math == 8.0


def test_a_multiplication_of_four_warps_takes_the_tensor_cores_of_all_four_parts() -> None:
    """64 x 128 x 16 at 2048 a cycle; its factors of 6 KiB take 48 cycles of shared memory."""
    one = cycles_of({Instruction("HGMMA.64x128x16.F32"): 1}, facts_of("sm_90a"))
    assert (one.math, one.shared) == (64.0, 48.0)
    assert kind_of(Instruction("HGMMA.64x128x16.F32")) == "hgmma"


def test_turns_of_loops() -> None:
    """The outer loop turns as the kernel's does, the inner one as often as its arithmetic takes."""
    i, j = Var("i"), Var("j")
    total = Buffer("t", (), "float32", "register")
    add = Store(total, (), Load(total, ()) + 1.0)
    body = For(i, 5, LoopKind.SERIAL, For(j, 8, LoopKind.SERIAL, add))
    kernel = Kernel(LoopFunction("k", (), (), body, 0), (1, 1, 1), (32, 1, 1))
    (code,) = kernels_in(LOOPS)
    assert hottest(code) == code.innermost()[0]
    bound = bound_of(code, kernel, facts_of("sm_90"))
    assert bound.mix == {"ffma": 2, "flow": 1}
    assert bound.around == {"ldg32": 1, "flow": 1}
    assert bound.whole is not None
    assert (bound.whole.math, bound.whole.issue) == (5 * 4 * 2, 1 + 5 * (1 + 4 * 3 + 1) + 1)


@pytest.mark.skipif(
    disassembler() is None or not assembles("sm_90"), reason="there is no nvdisasm, or no ptxas that knows sm_90"
)
def test_lines_of_a_product() -> None:
    """A small product's first program has a loop of multiply-adds, and a line that says where its bound comes from."""
    (figure,) = gpu_code.figures("matmul", GpuCase("matmul", (128, 128, 64)), "fp32", "sm_90", 1)
    assert 0.0 < figure.value <= 1.0
    assert figure.details["note"] == gpu_code.NOTE
    loop = figure.details["loop"]
    assert isinstance(loop, dict)
    assert loop["ffma"] > 0


@pytest.mark.skipif(
    disassembler() is None or not assembles("sm_90"), reason="there is no nvdisasm, or no ptxas that knows sm_90"
)
def test_estimate_and_bound_are_shares_of_one_peak() -> None:
    case = GpuCase("matmul", (512, 512, 512))
    (figure,) = gpu_code.figures("matmul", case, "f16", "sm_80", 1)
    loop, guess = figure.details["loop"], figure.details["guess"]
    assert isinstance(loop, dict)
    assert isinstance(guess, float)
    assert loop["hmma"] > 0
    task = gpu_code.task_of("matmul", case, "f16", "sm_80")
    (candidate, *_) = gpu_code.candidates_of(task)
    of_float32, _ = gpu_code.guessed(task, load_steps(candidate.steps))
    assert guess == pytest.approx(of_float32 / 16, abs=1e-4)  # 64 lanes of float32, 1024 on tensor cores
