"""The pass pipeline: optimizes an imported graph for partition into kernels, and verifies it after every pass."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.passes.channels_last import put_channels_last
from retune.compiler.graph.passes.common_subexpressions import fold_constants, share_subexpressions
from retune.compiler.graph.passes.fold_batch_norm import fold_batch_norm
from retune.compiler.graph.passes.fold_scales import fold_scales
from retune.compiler.graph.passes.half_weights import pair_channels, widen_weights
from retune.compiler.graph.passes.join_rows import join_rows
from retune.compiler.graph.passes.merge_products import merge_products
from retune.compiler.graph.passes.move_rows import move_rows
from retune.compiler.graph.passes.pad_rows import pad_rows
from retune.compiler.graph.passes.padding_taps import drop_padding_taps
from retune.compiler.graph.passes.quantized import compute_quantized
from retune.compiler.graph.passes.resample_later import resample_later
from retune.compiler.graph.passes.rules.recognize import recognize
from retune.compiler.graph.passes.rules.simplify import settle, simplify
from retune.compiler.graph.passes.scale_weights import scale_weights
from retune.compiler.graph.passes.slice_weights import slice_weights
from retune.compiler.graph.passes.subpixel_conv import split_by_phase
from retune.compiler.graph.passes.transposed_products import fuse_transposes
from retune.compiler.graph.passes.widen_scores import widen_scores
from retune.compiler.graph.verify import verify
from retune.compiler.ir import trace


class GraphPass(Protocol):
    """A rewrite of whole graphs that keeps their meaning: a function, whose name is the pass's."""

    __name__: str

    def __call__(self, graph: Graph) -> Graph:
        """The rewritten graph; `graph` itself is unchanged."""


_SIMPLIFYING: tuple[GraphPass, ...] = (
    fold_constants,
    fold_batch_norm,
    # Before the search for 1x1 convolutions: some dilated 3x3 convolutions become such.
    drop_padding_taps,
    share_subexpressions,
    # On the exporter's text, before simplification merges constants that patterns name.
    recognize,
    # Before constants of halves are joined, such as the inverse of a scale.
    widen_scores,
    simplify,
    # Simplified arithmetic shows more patterns, as x * (1 / n) for a mean.
    recognize,
    fold_scales,
)
"""The passes whose result has plain products and convolutions, channels first: what precisions are assigned to."""


PIPELINE: tuple[GraphPass, ...] = (
    # First: pairs of quantize and dequantize still surround single operators, as the exporter put them.
    compute_quantized,
    *_SIMPLIFYING,
    # Before the weights of some products are sliced.
    join_rows,
    # After scales are in the weights: a slice has fewer nodes to move through.
    slice_weights,
    simplify,
    fold_scales,
    # After transposes have sunk to the products, and before those of put_channels_last are added.
    fuse_transposes,
    put_channels_last,
    # The following passes know channels-last convolutions only.
    split_by_phase,
    simplify,
    resample_later,
    merge_products,
    # After the passes that need constant weights.
    scale_weights,
    pair_channels,
    widen_weights,
    # Late: its pads and slices would stop the rules above.
    pad_rows,
    # At the end: a transpose that has become a reshape no longer cancels against another transpose.
    settle,
    # After all rules that let transposes sink, which would move them back.
    move_rows,
    share_subexpressions,
)


NECESSARY: tuple[GraphPass, ...] = (fold_batch_norm, put_channels_last)
"""The passes that remove operators and layouts without kernels."""


def optimize(graph: Graph, passes: Sequence[GraphPass] = PIPELINE) -> Graph:
    """Apply `passes` in order. Inputs, and names and order of outputs, stay; results agree up to rounding.

    Raises: DefinitionError that names the pass after which the graph is malformed (a bug of that pass).
    """
    for graph_pass in passes:
        before = graph
        graph = graph_pass(graph)
        try:
            verify(graph)
        except DefinitionError as error:
            raise DefinitionError(f"after pass {graph_pass.__name__}: {error}") from error
        _show(before, graph, graph_pass.__name__)
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
