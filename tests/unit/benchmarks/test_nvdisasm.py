"""A disassembly is read: kernels, instructions with their widths, and loops inside of loops."""

import pytest

from benchmarks.nvdisasm import CodeLoop, Instruction, disassemble, disassembler, kernels_in
from retune.compiler.codegen.nvidia.ptxas import assemble, assembles

TEXT = """
	.target	sm_90
.text.first:
        /*0000*/                   S2R R7, SR_TID.X ;
.L_x_1:
        /*0010*/                   LDG.E.128.CONSTANT R4, desc[UR10][R4.64] ;
        /*0020*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_0:
        /*0030*/                   LDS.64 R6, [R80+-0x200] ;
        /*0040*/                   FFMA R68, R5.reuse, R6, R68 ;
        /*0050*/               @P1 BRA `(.L_x_0) ;
        /*0060*/              @!P0 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
.L_x_2:
        /*0080*/                   BRA `(.L_x_2);
        /*0090*/                   NOP;
.text.second:
        /*0000*/                   EXIT ;
"""
PTX = """.version 6.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n) {
.reg .u64 %a; .reg .f32 %f; .reg .u32 %i; .reg .u32 %n; .reg .pred %p;
ld.param.u64 %a, [p]; ld.param.u32 %n, [n]; mov.u32 %i, 0; mov.f32 %f, 0f00000000;
again: ld.global.f32 %f, [%a]; st.global.f32 [%a], %f; add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n;
@%p bra again;
ret; }
"""


def test_kernels_and_their_instructions() -> None:
    """Each section is a kernel; guards, labels and operands are kept, and what fills up the end is not."""
    first, second = kernels_in(TEXT)
    assert (first.name, second.name) == ("first", "second")
    assert [one.base for one in first.instructions] == ["S2R", "LDG", "BAR", "LDS", "FFMA", "BRA", "BRA", "EXIT", "BRA"]
    assert first.instructions[6] == Instruction("BRA", "`(.L_x_1)", "!P0", ".L_x_1")
    assert [one.base for one in second.instructions] == ["EXIT"]


def test_backward_branches_are_loops_and_nest() -> None:
    """The inner loop is in the outer one; what only goes back to itself is no loop."""
    code = kernels_in(TEXT)[0]
    outer, inner = CodeLoop(1, 6), CodeLoop(3, 5)
    assert code.loops == (outer, inner)
    assert code.innermost() == (inner,)
    assert code.around(inner) == (outer,)
    assert [one.base for one in code.own(outer)] == ["LDG", "BAR", "BRA"]


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("LDS", 32),
        ("LDS.128", 128),
        ("LDG.E.64.CONSTANT", 64),
        ("LDG.E.U16", 16),
        ("LDG.E.S8", 8),
        ("LDGSTS.E.BYPASS.LTC128B.128", 128),
        ("LDSM.16.M88.4", 128),
        ("LDSM.16.MT88.2", 64),
    ],
)
def test_width_of_an_access_is_read_from_its_name(name: str, bits: int) -> None:
    """How much an instruction moves is in its name."""
    assert Instruction(name).bits == bits


@pytest.mark.skipif(
    disassembler() is None or not assembles("sm_90"), reason="there is no nvdisasm, or no ptxas that knows sm_90"
)
def test_what_ptxas_makes_is_read() -> None:
    """The loop of a kernel that ptxas has assembled is found, with its loads and its stores."""
    (code,) = disassemble(assemble(PTX, "sm_90").code)
    assert code.name == "k"
    assert code.loops
    assert all({"LDG", "STG", "BRA"} <= {one.base for one in code.own(loop)} for loop in code.innermost())
