"""`retune explain` shows every stage of a kernel of a network, of a run, and of a GPU that this machine lacks."""

from pathlib import Path

import pytest

import retune
from retune.compiler.core.errors import OptionError
from retune.compiler.tune.explain import Explanation
from retune.compiler.tune.limits import MachineLimits
from retune.flows.cli.kernel_explainer import KernelExplainer
from tests.support.flows.command_line import refused, run

KERNEL = "dense_k784_1x512_add_relu"
GPU = "cuda -arch=sm_90"


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    return KernelExplainer.of("mlp", tmp_path_factory.mktemp("store"), 1, None, ()).explain(KERNEL)


@pytest.fixture(scope="module")
def for_gpu(tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    return KernelExplainer.of("mlp", tmp_path_factory.mktemp("store"), 1, GPU, ()).explain(KERNEL)


def test_page_has_every_section(explained: Explanation) -> None:
    page = str(explained)
    for said in (
        "Graph -",
        "dense(input, fc1)",
        "Computation -",
        "p0 = PLACEHOLDER [1, 784]",
        "Loop nest -",
        "parallel ",
        "Passes -",
        "register-tiles: +",
        "Limit -",
        "operations/byte",
        "Hot loop -",
        "multiply-adds",
        "Search -",
        "no program of this kernel was measured",
    ):
        assert said in page


def test_stages_of_a_cpu_are_printed_alone(explained: Explanation) -> None:
    assert explained.stage("graph").count("\n") == 2
    assert "PLACEHOLDER" in explained.stage("te")
    assert explained.stage("steps").startswith("from retune.compiler.schedule.primitives import")
    assert explained.stage("loops").startswith("def kernel(")
    assert "+" in explained.stage("passes")
    assert "define " in explained.stage("llvm")
    assert ".text" in explained.stage("asm")
    with pytest.raises(OptionError, match="no stage 'ptx'; it has graph, te, steps, loops, passes, llvm, asm"):
        explained.stage("ptx")


def test_printed_steps_make_the_same_loops(explained: Explanation) -> None:
    names: dict[str, object] = {"dag": explained.task.dag}
    exec(explained.stage("steps"), names)
    assert str(names["state"]) == explained.nest


def test_every_pass_shows_its_difference(explained: Explanation) -> None:
    first, *others = explained.stages
    assert first.difference == first.text
    for before, after in zip(explained.stages, others, strict=False):
        assert bool(after.difference) == (before.text != after.text)
    assert others[-1].text == explained.stage("loops")


def test_gpu_programs_are_explained_without_a_gpu(for_gpu: Explanation) -> None:
    assert ".entry" in for_gpu.stage("ptx")
    assert for_gpu.hot_loop is not None
    assert for_gpu.hot_loop.multiply_adds > 0
    assert "no time of this kernel is known" in for_gpu.limit
    assert "blockIdx" in for_gpu.nest
    with pytest.raises(OptionError, match="no stage 'asm'"):
        for_gpu.stage("asm")


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1.0, "only less work would make it faster"),
        (0.5, "this machine is busy"),
        (4.0, "up to 4.0 times as fast is left; the hot loop"),
    ],
)
def test_limit_is_the_slower_of_arithmetic_and_memory(explained: Explanation, times: float, said: str) -> None:
    limits = MachineLimits(1, peak_gflops=1e3, memory_gbs=10.0, cache_gbs=10.0)
    bytes_moved = 4 * (784 + 784 * 512 + 512 + 512)
    one = Explanation(explained.task, 1, None, times * bytes_moved / 10e9, "", None, limits)
    assert "moving data" in one.limit
    assert said in one.limit
    slow = MachineLimits(1, peak_gflops=1.0, memory_gbs=10.0, cache_gbs=10.0)
    assert "by arithmetic" in Explanation(explained.task, 1, None, 1.0, "", None, slow).limit


def test_command_lists_kernels_prints_stages_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "explain", "mlp") == 0
    assert capsys.readouterr().out.splitlines()[0] == f"  1 x {KERNEL}  - ms  default schedule"
    assert run(monkeypatch, "explain", "mlp", KERNEL[:12], "--stage", "te") == 0
    assert capsys.readouterr().out.startswith("p0 = PLACEHOLDER")
    assert run(monkeypatch, "explain", "mlp", KERNEL, "--html", "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert "after register-tiles" in page
    assert "<ins>" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mlp", "dens_k784"), "there is no kernel 'dens_k784'; the nearest are"),
        (("mlp", "--stage", "asm"), "name one, or ask for the --slowest"),
        (("mlp", KERNEL, "--stage", "assembly"), "there is no stage 'assembly'"),
        (("mlp", "--slowest", "2"), "no kernel of mlp was measured on this machine"),
        (("mlp", KERNEL, "--slowest", "2"), "not both"),
        (("mpl",), "there is no network or run 'mpl'"),
    ],
)
def test_wrong_words_are_refused_in_one_sentence(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(monkeypatch, capsys, "explain", *words, "--store", str(tmp_path))


def test_python_explains_a_compiled_network(tmp_path: Path) -> None:
    fast = retune.compile("mlp", threads=1, store=tmp_path)
    assert retune.explain(fast, KERNEL).stage("te").startswith("p0 = PLACEHOLDER [1, 784]")
    with pytest.raises(OptionError, match="2 kernels begin with 'dense_k512'"):
        retune.explain(fast, "dense_k512")
    with pytest.raises(OptionError, match="comes from a file"):
        retune.explain(retune.load(fast.save(tmp_path / "mlp.retune")), KERNEL)
