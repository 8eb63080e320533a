"""`torch.compile(backend="retune")` and `retune.compile(module)`: results are those of PyTorch."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import retune
from retune.compiler.core.errors import DefinitionError, ModelError, OptionError
from retune.compiler.ops import OPS, Lowered, OpCall

torch = pytest.importorskip("torch", reason="torch: pip install -e '.[torch]'")
pytest.importorskip("onnxscript", reason="onnxscript: pip install -e '.[torch]'")
from retune import torch_backend, torch_trial  # noqa: E402 - they import PyTorch

nn = torch.nn

UNTUNED = {"tune": False}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path / "state"))
    torch._dynamo.reset()
    torch.manual_seed(0)


class Small(nn.Module):  # type: ignore[name-defined,misc]
    """A convolution, a norm and a dense layer; returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.dense = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: Any, scale: float = 1.0) -> dict[str, Any]:
        """Scores, hidden values."""
        hidden = torch.relu_(self.norm(self.conv(x))).mean((2, 3))
        return {"scores": self.dense(hidden) * scale, "hidden": hidden}


def _close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_module_is_compiled_and_keeps_the_structure_of_its_results() -> None:
    model, x = Small().eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        _close(retune.compile(model, x)(x), model(x))


def test_arguments_that_are_no_tensors_are_fixed() -> None:
    model, x = Small().eval(), torch.randn(2, 3, 16, 16)
    fast = retune.compile(model, x, scale=2.0)
    with torch.no_grad():
        _close(fast(x, scale=2.0), model(x, scale=2.0))
    with pytest.raises(OptionError, match=r"compiled for the argument 2\.0, not 3\.0"):
        fast(x, scale=3.0)


def test_a_dynamic_module_takes_other_sizes() -> None:
    model = Small().eval()
    fast = retune.compile(model, torch.randn(2, 3, 16, 16), dynamic=True)
    x = torch.randn(3, 3, 20, 12)
    with torch.no_grad():
        _close(fast(x), model(x))


def test_wrong_calls_of_a_compiled_module_are_refused_in_one_sentence() -> None:
    x = torch.randn(2, 3, 16, 16)
    fast = retune.compile(Small().eval(), x, scale=2.0)
    with pytest.raises(OptionError) as raised:
        fast(x, x)
    words = "the network was compiled for the arguments (..., scale=...), not the arguments (..., ...)"
    assert str(raised.value) == words
    with pytest.raises(OptionError, match=r"pass tensor\.to_dense\(\)"):
        fast(x.to_sparse(), scale=2.0)


def test_a_model_that_cannot_be_exported_is_refused_without_a_dump_of_its_graph(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Branch(nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(ModelError, match="PyTorch cannot export Branch"):
        retune.compile(Branch().eval(), torch.randn(2, 4))
    assert capfd.readouterr() == ("", "")


def test_a_module_in_training_mode_is_refused() -> None:
    with pytest.raises(ModelError, match=r"call Small\.eval\(\) first"):
        retune.compile(Small(), torch.randn(2, 3, 16, 16))


def test_a_module_needs_example_inputs() -> None:
    with pytest.raises(OptionError, match="example inputs are needed"):
        retune.compile(Small().eval())


def test_a_tensor_without_memory_is_refused() -> None:
    fast = retune.compile(torch.nn.Linear(8, 4).eval(), torch.randn(2, 8))
    with torch._subclasses.FakeTensorMode():
        x = torch.randn(2, 8)
    with pytest.raises(retune.RetuneError, match="a FakeTensor was given, whose memory cannot be read"):
        fast(x)


def test_a_module_on_another_device_is_refused() -> None:
    with pytest.raises(ModelError, match="are on meta: move them to the CPU"):
        retune.compile(Small().eval().to("meta"), torch.randn(2, 3, 16, 16))


def test_torch_compile_finds_the_backend_and_gives_the_results_of_eager() -> None:
    model, x = Small().eval(), torch.randn(2, 3, 16, 16)
    fast = torch.compile(model, backend="retune", options=UNTUNED)
    with torch.no_grad():
        _close(fast(x), model(x))
        _close(fast(x), model(x))


@pytest.mark.long
def test_torch_compile_follows_new_shapes_and_new_weights(caplog: pytest.LogCaptureFixture) -> None:
    model = Small().eval()
    fast = torch.compile(model, backend="retune", options=UNTUNED)
    with torch.inference_mode(), caplog.at_level(logging.WARNING, "retune"):
        for batch in (2, 3, 4):
            x = torch.randn(batch, 3, 16, 16)
            _close(fast(x), model(x))
    with torch.no_grad():
        model.dense.weight.mul_(2)
        _close(fast(x), model(x))
    assert not [record for record in caplog.records if record.name.startswith("retune")]


class Attention(nn.Module):  # type: ignore[name-defined,misc]
    """A layer of a transformer on embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.heads, self.out = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: Any) -> Any:
        """A vector for each token."""
        x = self.embed(ids)
        batch, tokens, _ = x.shape
        q, k, v = self.heads(x).view(batch, tokens, 3, 2, 8).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.norm(x + self.out(seen.transpose(1, 2).reshape(batch, tokens, 16)))


def _dynamic_graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that the virtual machine gets from now on."""
    made: list[Any] = []
    original = torch_backend._Dynamic.__init__

    def noted(self: Any, *args: Any) -> None:
        original(self, *args)
        made.append(self)

    monkeypatch.setattr(torch_backend._Dynamic, "__init__", noted)
    return made


@pytest.mark.long
def test_a_dynamic_batch_runs_in_one_virtual_machine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, model = _dynamic_graphs(monkeypatch), Small().eval()
    fast = torch.compile(model, backend="retune", options=UNTUNED, dynamic=True)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "retune"):
        for batch in (2, 5, 3):
            x = torch.randn(batch, 3, 8, 8)
            _close(fast(x), model(x))
        model.dense.weight.mul_(2)
        _close(fast(x), model(x))
    assert len(made) == 2  # for the first weights, and for the others
    assert not [record for record in caplog.records if record.name.startswith("retune")]


@pytest.mark.long
def test_a_transformer_takes_any_number_of_tokens_after_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made, model = _dynamic_graphs(monkeypatch), Attention().eval()
    fast = torch.compile(model, backend="retune", options=UNTUNED)
    with torch.inference_mode():
        for tokens in (7, 11, 4, 20):
            ids = torch.randint(0, 50, (2, tokens))
            _close(fast(ids), model(ids))
    assert len(made) == 1


@pytest.mark.long
def test_a_dynamic_graph_that_cannot_be_exported_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    def ordered(x: Any) -> Any:
        return torch.cummax(torch.relu(x) + 1, 0)[0] * 2

    fast = torch.compile(ordered, backend="retune", options=UNTUNED, dynamic=True)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "retune"):
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            _close(fast(x), ordered(x))
    [said] = [record.getMessage() for record in caplog.records if "dynamic shapes" in record.getMessage()]
    assert "compiled for each shape" in said


class Tagger(nn.Module):  # type: ignore[name-defined,misc]
    """An encoder layer, `between`, and scores of all tokens as rows of one matrix."""

    def __init__(self, between: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.dense = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), nn.Linear(32, 5)
        self.between = between

    def forward(self, x: Any) -> Any:
        """Scores of all tokens, and of the first again."""
        hidden = self.between(self.layer(x))
        batch, tokens, width = hidden.shape
        scores = self.dense(hidden.reshape(batch * tokens, width)).view(batch, tokens, 5)
        return torch.cat([scores, scores[:, :1]], 1)


@pytest.mark.long
@pytest.mark.parametrize(("between", "networks"), [(torch.relu, 1), (lambda x: torch.cummax(x, 1)[0], 2)])
def test_an_encoder_layer_and_products_of_extents_take_any_shape(
    between: Callable[[Any], Any], networks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where PyTorch runs the operator between them, the product is a number that the second part takes."""
    made, model = _dynamic_graphs(monkeypatch), Tagger(between).eval()
    fast = torch.compile(model, backend="retune", options=UNTUNED, dynamic=True)
    with torch.no_grad():
        for batch, tokens in ((2, 6), (3, 5), (4, 9)):
            x = torch.randn(batch, tokens, 32)
            _close(fast(x), model(x))
    assert len(made) == networks


def test_torch_compile_keeps_writes_to_inputs_and_aliases() -> None:
    def change(x: Any) -> Any:
        x.add_(1)
        return x.view(-1)

    fast = torch.compile(change, backend="retune", options=UNTUNED)
    x = torch.zeros(4, 4)
    with torch.no_grad():
        y = fast(x)
    assert x.sum() == 16
    assert y.data_ptr() == x.data_ptr()


def test_outputs_that_share_memory_do_so_in_the_compiled_graph() -> None:
    def views(x: Any) -> tuple[Any, ...]:
        z = torch.relu(x) + 1
        return z, z.T, z.reshape(-1)[2:5], z, z * 2

    x = torch.randn(3, 4)
    with torch.no_grad():
        found, wanted = torch.compile(views, backend="retune", options={"tune": False})(x), views(x)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)
        found[0].zero_()
    assert [bool(one.any()) for one in found] == [False, False, False, False, True]


@pytest.mark.long
def test_parts_of_a_split_share_memory_with_the_whole() -> None:
    def parts(x: Any) -> tuple[Any, ...]:
        z = torch.relu(x) + 1
        return z, *z.split(2, 0), z.unbind(1)[1]

    x = torch.randn(4, 6)
    with torch.no_grad():
        found, wanted = torch.compile(parts, backend="retune", options={"tune": False})(x), parts(x)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)
        found[0].zero_()
    assert not any(bool(one.any()) for one in found)


@pytest.mark.long
def test_real_views_of_a_complex_tensor_are_right() -> None:
    def halves(x: Any) -> tuple[Any, ...]:
        z = torch.complex(x, x + 1) * 2
        return z.real, z.imag, x * 2

    x = torch.randn(4, 6)
    with torch.no_grad():
        found, wanted = torch.compile(halves, backend="retune", options={"tune": False})(x), halves(x)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_torch_compile_takes_bfloat16() -> None:
    model, x = nn.Linear(16, 8).bfloat16().eval(), torch.randn(2, 16).bfloat16()
    fast = torch.compile(model, backend="retune", options=UNTUNED)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-2)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reductions_of_halves_keep_their_type(dtype: Any) -> None:
    def reduced(x: Any) -> tuple[Any, ...]:
        total = x.sum(1)
        return (
            x.sum(),
            total,
            total * 2,
            x.prod(0),
            x.amax(1),
            x.cumsum(1),
            x.mean(1),
            x.var(1),
            x.nansum(0),
            x.sum(dtype=torch.float32),
        )

    x = torch.rand(4, 17).to(dtype)
    for found, wanted in zip(torch.compile(reduced, backend="retune", options=UNTUNED)(x), reduced(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.01)  # with the type


@pytest.mark.long
def test_any_of_nothing_is_false() -> None:
    def told(x: Any) -> tuple[Any, ...]:
        return x.any(), x.all(), x.any(0), x.any(1), x.bool().to(torch.int64).amax(1)

    for shape in ((0, 17), (3, 17)):
        x = torch.zeros(shape)
        found = torch.compile(told, backend="retune", options=UNTUNED)(x)
        for one, wanted in zip(found, told(x), strict=True):
            assert torch.equal(one, wanted)


def test_graph_breaks_make_several_graphs() -> None:
    first, second = nn.Linear(8, 8).eval(), nn.Linear(8, 8).eval()

    def both(x: Any) -> Any:
        hidden = first(x)
        torch._dynamo.graph_break()
        return second(hidden)

    x = torch.randn(2, 8)
    with torch.no_grad():
        _close(torch.compile(both, backend="retune", options=UNTUNED)(x), both(x))


@pytest.mark.long
def test_operators_that_are_not_taken_run_in_pytorch_and_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    first, second = nn.Linear(16, 16).eval(), nn.Linear(16, 4).eval()

    def mixed(x: Any) -> Any:
        hidden = torch.erfinv(torch.sigmoid(first(x) + 1) * 0.5)
        return torch.softmax(second(hidden) * 2, -1), torch.cummax(hidden, 0)[0]

    fast, x = torch.compile(mixed, backend="retune", options=UNTUNED), torch.randn(3, 16)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "retune"):
        _close(fast(x), mixed(x))
        _close(fast(x), mixed(x))
    [said] = [record.getMessage() for record in caplog.records if record.name.startswith("retune")]
    assert "aten.cummax.default, aten.erfinv.default" in said


def test_what_cannot_be_lowered_runs_in_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> Any:
        raise DefinitionError("-1 is no uint8")

    def lower(call: OpCall) -> Lowered:
        return Lowered(call.types[0].shape, call.types[0].dtype, refuse)

    monkeypatch.setitem(OPS, "sign", replace(OPS["sign"], lower=lower))
    x = torch.randn(3, 4)
    with caplog.at_level(logging.WARNING, "retune"):
        _close(torch.compile(torch.sign, backend="retune", options=UNTUNED)(x), x.sign())
    assert "sign" in caplog.text
    assert "-1 is no uint8" in caplog.text


def test_the_sign_of_bytes_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.tensor([0, 3, 255], dtype=torch.uint8)
    with caplog.at_level(logging.WARNING, "retune"):
        found = torch.compile(torch.sign, backend="retune", options=UNTUNED)(x)
    assert (found.dtype, found.tolist()) == (torch.uint8, [0, 1, 1])
    assert not [record for record in caplog.records if record.name.startswith("retune")]


@pytest.mark.parametrize("declined", [(), (0,), (36,), (5, 6, 30), tuple(range(37))])
def test_bisection_finds_the_declined_operators(declined: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    exports: list[int] = []

    def are_taken(cases: list[int]) -> bool:
        exports.append(len(cases))
        return not set(cases) & set(declined)

    monkeypatch.setattr(torch_trial, "_are_taken", are_taken)
    cases: Any = [(str(number), number) for number in range(37)]
    assert torch_trial._declined_of(cases) == [cases[number] for number in declined]
    assert len(exports) <= min(2 * 37, 1 + 12 * len(declined))


@pytest.mark.long
def test_attention_is_compiled_although_its_second_result_is_not(caplog: pytest.LogCaptureFixture) -> None:
    def mixed(q: Any, k: Any, v: Any) -> Any:
        return torch.cummax(torch.nn.functional.scaled_dot_product_attention(q, k, v) * 2, 0)[0]

    fast, qkv = torch.compile(mixed, backend="retune", options=UNTUNED), torch.randn(3, 2, 4, 5, 8)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "retune"):
        _close(fast(*qkv), mixed(*qkv))
    [said] = [record.getMessage() for record in caplog.records if record.name.startswith("retune")]
    assert said.startswith("PyTorch runs aten.cummax.default, 0.0%")


def test_a_number_minus_integers_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    fast = torch.compile(lambda mask: (1.0 - mask) * -1e30, backend="retune", options=UNTUNED)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "retune"):
        _close(fast(mask), (1.0 - mask) * -1e30)
    assert not [record for record in caplog.records if record.name.startswith("retune")]


def test_recording_gradients_is_refused() -> None:
    fast = torch.compile(nn.Linear(4, 4).eval(), backend="retune", options=UNTUNED)
    with pytest.raises(Exception, match=r"call the model under torch\.inference_mode"):
        fast(torch.randn(2, 4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speed": 1}, "no option speed"),
        ({"tune": 3}, "tune must be true or false"),
        ({"effort": "much"}, "effort must be one of"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    fast = torch.compile(nn.Linear(4, 4).eval(), backend="retune", options=options)
    with torch.no_grad(), pytest.raises(Exception, match=words):
        fast(torch.randn(2, 4))
