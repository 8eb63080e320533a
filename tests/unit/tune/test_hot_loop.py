"""The hot loop of a listing is found and its instructions are counted, for x86, AArch64 and PTX."""

from retune.compiler.tune.hot_loop import AARCH64, PTX, X86, find_hot_loop, mark

ON_X86 = """\
\t.text
kernel:
\tpushq\t%rbx
\tmovq\t%rdi, %rax
.LBB0_1:
\tvxorps\t%xmm0, %xmm0, %xmm0
.LBB0_2:
\tvmovups\t(%rsi,%rcx), %zmm2
\tvfmadd231ps\t(%rdi), %zmm2, %zmm0
\tvfmadd231ps\t64(%rsp), %zmm2, %zmm1 {%k1}  # 64-byte Folded Reload
\tvaddps\t%zmm2, %zmm1, %zmm3
\tvmovups\t%zmm3, 128(%rsp)
\tcmpq\t$8, (%r8)
\tjne\t.LBB0_2
\tvmovups\t%zmm0, (%rdx)
\tdecq\t%rax
\tjne\t.LBB0_1
.LBB0_5:
\tmovl\t$1, (%rax)
\tjmp\t.LBB0_5
\tretq
"""

ON_AARCH64 = """\
kernel:
.LBB0_1:
\tldr\tq2, [x1], #16
\tldr\tq3, [sp, #32]
\tfmla\tv0.4s, v2.4s, v3.s[0]
\tfadd\tv1.4s, v1.4s, v2.4s
\tstr\tq1, [x3]
\tsubs\tx0, x0, #1
\tb.ne\t.LBB0_1
\tret
"""

IN_PTX = """\
.visible .entry kernel(
\t.param .u64 kernel_param_0
)
{
\t.reg .pred \t%p<2>;
\tld.param.u64 \t%rd1, [kernel_param_0];
$L__BB0_1:
\tld.shared.f32 \t%f1, [%rd1];
\tld.local.f32 \t%f2, [%rd2];
\tfma.rn.f32 \t%f3, %f1, %f2, %f3;
\tadd.rn.f32 \t%f4, %f3, %f1;
\tst.global.f32 \t[%rd3], %f4;
\tsetp.ne.s32 \t%p1, %r1, 0;
\t@%p1 bra \t$L__BB0_1;
\tret;
}
"""


def test_x86_counts_an_iteration_of_the_innermost_loop_with_most_arithmetic() -> None:
    loop = find_hot_loop(ON_X86, X86)
    assert loop is not None
    assert loop.is_loop
    assert (loop.first, loop.last) == (6, 13)
    assert (loop.instructions, loop.multiply_adds, loop.arithmetic) == (7, 2, 1)
    assert (loop.loads, loop.stores, loop.spills) == (4, 1, 2)  # cmpq reads memory too
    assert (loop.registers, loop.accumulators) == (4, 2)


def test_x86_counts_arrays_addressed_by_a_general_rbp_as_loads_and_no_spills() -> None:
    text = "f:\n.L1:\n\tvbroadcastss\t-252(%rbp,%rdi,4), %ymm1\n\tvfmadd231ps\t-64(%rbp), %ymm1, %ymm0\n\tjb\t.L1\n"
    loop = find_hot_loop(text, X86)
    assert loop is not None
    assert (loop.loads, loop.spills) == (2, 1)


def test_aarch64_counts_stack_accesses_as_spills() -> None:
    loop = find_hot_loop(ON_AARCH64, AARCH64)
    assert loop is not None
    assert (loop.first, loop.last, loop.instructions) == (1, 8, 7)
    assert (loop.multiply_adds, loop.arithmetic, loop.loads, loop.stores, loop.spills) == (1, 1, 2, 1, 1)
    assert loop.registers == 4


def test_ptx_counts_local_memory_as_spills_and_no_registers() -> None:
    loop = find_hot_loop(IN_PTX, PTX)
    assert loop is not None
    assert (loop.first, loop.last, loop.instructions) == (6, 13, 7)
    assert (loop.multiply_adds, loop.arithmetic, loop.loads, loop.stores, loop.spills) == (1, 1, 2, 1, 1)
    assert (loop.registers, loop.accumulators) == (0, 1)


def test_code_without_a_loop_is_counted_as_a_whole() -> None:
    loop = find_hot_loop("kernel:\n\tvmovups\t(%rdi), %ymm0\n\tvmovups\t%ymm0, (%rsi)\n\tretq\n", X86)
    assert loop is not None
    assert not loop.is_loop
    assert (loop.instructions, loop.loads, loop.stores) == (3, 1, 1)
    assert str(loop).startswith("the kernel has no loop")


def test_an_empty_listing_has_no_hot_loop() -> None:
    assert find_hot_loop("\t.text\n# nothing\n", X86) is None


def test_marks_stand_before_the_lines_of_the_loop_alone() -> None:
    loop = find_hot_loop(ON_AARCH64, AARCH64)
    assert loop is not None
    marked = mark(ON_AARCH64, loop).splitlines()
    assert [line[0] for line in marked] == [" ", *"||||||||", " "]
    assert len(mark(ON_AARCH64, loop, around=1).splitlines()) == 10
