"""Builders of well-known networks as ONNX models with seeded weights; nothing is downloaded.

The same name and options give the same bytes on every machine.
"""

from collections.abc import Callable, Mapping

import onnx

from retune.compiler.core.errors import ModelFormatError, OptionError
from retune.compiler.frontend.model_file import check_model
from retune.compiler.frontend.zoo.bert import bert_base
from retune.compiler.frontend.zoo.mlp import mlp
from retune.compiler.frontend.zoo.mobilenet import mobilenet_v2
from retune.compiler.frontend.zoo.resnet import resnet18, resnet50

NETWORKS: Mapping[str, Callable[..., onnx.ModelProto]] = {
    "bert_base": bert_base,
    "mlp": mlp,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "resnet50": resnet50,
}
NAMES: tuple[str, ...] = tuple(NETWORKS)


def build(
    name: str, networks: Mapping[str, Callable[..., onnx.ModelProto]] = NETWORKS, **options: object
) -> onnx.ModelProto:
    """Build the network `name` of `networks`; `options` are the keyword arguments of its function, such as `batch`.

    Raises: ModelFormatError when there is no such network, OptionError when it has no such option.
    """
    if name not in networks:
        raise ModelFormatError(f"no network {name!r} in the zoo; it has {', '.join(networks)}")
    try:
        model = networks[name](**options)
    except TypeError as error:
        raise OptionError(f"network {name}: {error}") from None
    check_model(model)
    return model
