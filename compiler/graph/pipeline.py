"""The pass pipeline: optimizes an imported graph for partition into kernels, and verifies it after every pass."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.passes.channels_last import ChannelsLast
from retune.compiler.graph.passes.common_subexpressions import CommonSubexpressions
from retune.compiler.graph.passes.fold_batch_norm import FoldBatchNorm
from retune.compiler.graph.passes.fold_constants import FoldConstants
from retune.compiler.graph.passes.fold_scales import FoldScales
from retune.compiler.graph.passes.merge_products import MergeProducts
from retune.compiler.graph.passes.move_rows import MoveRows
from retune.compiler.graph.passes.pad_rows import PadRows
from retune.compiler.graph.passes.padding_taps import DropPaddingTaps
from retune.compiler.graph.passes.pair_channels import PairChannels
from retune.compiler.graph.passes.quantized import Quantized
from retune.compiler.graph.passes.resample_later import ResampleLater
from retune.compiler.graph.passes.rules.recognize import Recognize
from retune.compiler.graph.passes.rules.simplify import SETTLING_RULES, Simplify
from retune.compiler.graph.passes.scale_weights import ScaleWeights
from retune.compiler.graph.passes.slice_weights import SliceWeights
from retune.compiler.graph.passes.subpixel_conv import SubpixelConv
from retune.compiler.graph.passes.transposed_products import TransposedProducts
from retune.compiler.graph.passes.widen_scores import WidenScores
from retune.compiler.graph.passes.widen_weights import WidenWeights
from retune.compiler.graph.verify import verify
from retune.compiler.ir import trace


class GraphPass(Protocol):
    """A named rewrite of whole graphs that keeps their meaning."""

    @property
    def name(self) -> str: ...

    def apply(self, graph: Graph) -> Graph:
        """The rewritten graph; `graph` itself is unchanged."""


_SIMPLIFYING: tuple[GraphPass, ...] = (
    FoldConstants(),
    FoldBatchNorm(),
    # Before the search for 1x1 convolutions: some dilated 3x3 convolutions become such.
    DropPaddingTaps(),
    CommonSubexpressions(),
    # On the exporter's text, before simplification merges constants that patterns name.
    Recognize(),
    # Before constants of halves are joined, such as the inverse of a scale.
    WidenScores(),
    Simplify(),
    # Simplified arithmetic shows more patterns, as x * (1 / n) for a mean.
    Recognize(name="recognize_simplified"),
    FoldScales(),
)
"""The passes whose result has plain products and convolutions, channels first: what precisions are assigned to."""


PIPELINE: tuple[GraphPass, ...] = (
    # First: pairs of quantize and dequantize still surround single operators, as the exporter put them.
    Quantized(),
    *_SIMPLIFYING,
    # After scales are in the weights: a slice has fewer nodes to move through.
    SliceWeights(),
    Simplify(),
    FoldScales(name="fold_scales_of_slices"),
    # After transposes have sunk to the products, and before those of ChannelsLast are added.
    TransposedProducts(),
    ChannelsLast(),
    # The following passes know channels-last convolutions only.
    SubpixelConv(),
    Simplify(),
    ResampleLater(),
    MergeProducts(),
    # After the passes that need constant weights.
    ScaleWeights(),
    PairChannels(),
    WidenWeights(),
    # Late: its pads and slices would stop the rules above.
    PadRows(),
    # At the end: a transpose that has become a reshape no longer cancels against another transpose.
    Simplify(name="settle", rules=SETTLING_RULES),
    # After all rules that let transposes sink, which would move them back.
    MoveRows(),
    CommonSubexpressions(name="common_subexpressions_again"),
)


NECESSARY: tuple[GraphPass, ...] = (FoldBatchNorm(), ChannelsLast())
"""The passes that remove operators and layouts without kernels."""


def optimize(graph: Graph, passes: Sequence[GraphPass] = PIPELINE) -> Graph:
    """Apply `passes` in order. Inputs, and names and order of outputs, stay; results agree up to rounding.

    Raises: DefinitionError that names the pass after which the graph is malformed (a bug of that pass).
    """
    for graph_pass in passes:
        before = graph
        graph = graph_pass.apply(graph)
        try:
            verify(graph)
        except DefinitionError as error:
            raise DefinitionError(f"after pass {graph_pass.name}: {error}") from error
        _show(before, graph, graph_pass.name)
    return graph


def prepare(graph: Graph) -> Graph:
    """The imported graph in the form in which precisions are assigned to its layers; `optimize` takes it, too. Nodes
    are called by their results, so that kernels tell which layers they compute.
    """
    graph = optimize(graph, _SIMPLIFYING)
    return replace(graph, nodes=tuple(replace(node, name=node.output) for node in graph.nodes))


def _show(before: Graph, graph: Graph, name: str) -> None:
    stage = f"after {name}: {len(before.nodes)} nodes, now {len(graph.nodes)}"
    trace.show(trace.STEPS, graph.name, stage, str)
    trace.show(trace.PASSES, graph.name, stage, lambda: str(graph))
