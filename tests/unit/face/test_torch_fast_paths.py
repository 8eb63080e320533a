"""Operators of PyTorch's fast paths: what stands for them computes the same."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch: pip install -e '.[torch]'")
from retune.torch_fast_paths import DECOMPOSITIONS  # noqa: E402 - it imports PyTorch

_ATEN = torch.ops.aten
_WIDTH, _HEADS, _BATCH, _LENGTH = 32, 4, 3, 7


def _random(*shape: int) -> Any:
    return torch.randn(*shape) * 0.2


def _weights() -> tuple[Any, ...]:
    return _random(3 * _WIDTH, _WIDTH), _random(3 * _WIDTH), _random(_WIDTH, _WIDTH), _random(_WIDTH)


def _masks() -> list[tuple[Any, int | None]]:
    """Each type of mask. In the last a sequence has no key at all."""
    padding = torch.arange(_LENGTH) >= torch.tensor([[7], [4], [1]])
    causal = torch.ones(_LENGTH, _LENGTH, dtype=torch.bool).triu(1)
    both = (padding[:, None, None] | causal).expand(_BATCH, _HEADS, _LENGTH, _LENGTH).contiguous()
    empty = torch.arange(_LENGTH) >= torch.tensor([[7], [4], [0]])
    return [(None, None), (causal, 0), (padding, 1), (padding.float(), 1), (both, 2), (empty, 1)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", range(6))
@pytest.mark.parametrize("averages", [False, True])
def test_attention_is_that_of_the_operator(mask: int, averages: bool) -> None:
    operator = _ATEN._native_multi_head_attention.default
    x, weights = torch.randn(_BATCH, _LENGTH, _WIDTH), _weights()
    keys, mask_type = _masks()[mask]
    for needs_weights in (False, True):
        arguments = (x, x, x, _WIDTH, _HEADS, *weights, keys, needs_weights, averages, mask_type)
        found, wanted = DECOMPOSITIONS[operator](*arguments), operator(*arguments)
        # The operator gives NaN where no key is left.
        has_keys = ~wanted[0].isnan().any(-1)
        assert has_keys.sum() == (2 if mask == 5 else 3) * _LENGTH
        _close(found[0][has_keys], wanted[0][has_keys])
        assert found[0].isfinite().all()
        if needs_weights:
            rows = (lambda scores: scores) if averages else (lambda scores: scores.transpose(1, 2))
            _close(rows(found[1])[has_keys], rows(wanted[1])[has_keys])


def test_attention_of_three_inputs_is_that_of_the_operator() -> None:
    operator = _ATEN._native_multi_head_attention.default
    inputs = [torch.randn(_BATCH, _LENGTH, _WIDTH) for _ in range(3)]
    arguments = (*inputs, _WIDTH, _HEADS, *_weights(), None, False)
    _close(DECOMPOSITIONS[operator](*arguments)[0], operator(*arguments)[0])


@pytest.mark.parametrize("mask", range(5))
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("gelu", [False, True])
def test_an_encoder_layer_is_that_of_the_operator(gelu: bool, norm_first: bool, mask: int) -> None:
    operator = _ATEN._transformer_encoder_layer_fwd.default
    norms = [_random(_WIDTH) for _ in range(4)]
    feed_forward = (_random(64, _WIDTH), _random(64), _random(_WIDTH, 64), _random(_WIDTH))
    arguments = (
        torch.randn(_BATCH, _LENGTH, _WIDTH),
        _WIDTH,
        _HEADS,
        *_weights(),
        gelu,
        norm_first,
        1e-5,
        *norms,
        *feed_forward,
        *_masks()[mask],
    )
    _close(DECOMPOSITIONS[operator](*arguments), operator(*arguments))
