"""In: an imported graph. Out: the graph that is cut into kernels. Always: it is verified after every pass."""

import logging
from collections.abc import Sequence

from retune.compiler.errors import DefinitionError
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.passes.base import GraphPass
from retune.compiler.graph.passes.channels_last import ChannelsLast
from retune.compiler.graph.passes.common_subexpressions import CommonSubexpressions
from retune.compiler.graph.passes.even_rows import EvenRows
from retune.compiler.graph.passes.fold_batch_norm import FoldBatchNorm
from retune.compiler.graph.passes.fold_constants import FoldConstants
from retune.compiler.graph.passes.fold_scales import FoldScales
from retune.compiler.graph.passes.phases import Phases
from retune.compiler.graph.passes.quantised import Quantised
from retune.compiler.graph.passes.recognise import Recognise
from retune.compiler.graph.passes.simplify import SETTLING_RULES, Simplify
from retune.compiler.graph.passes.slice_weights import SliceWeights
from retune.compiler.graph.passes.transposed_products import TransposedProducts
from retune.compiler.graph.verify import verify

_log = logging.getLogger(__name__)

PIPELINE: tuple[GraphPass, ...] = (
    Quantised(),
    FoldConstants(),
    FoldBatchNorm(),
    CommonSubexpressions(),
    Recognise(),
    Simplify(),
    Recognise(name="recognise_simplified"),
    FoldScales(),
    SliceWeights(),
    Simplify(),
    FoldScales(name="fold_scales_of_slices"),
    TransposedProducts(),
    ChannelsLast(),
    Phases(),
    Simplify(),
    EvenRows(),
    Simplify(name="settle", rules=SETTLING_RULES),
    CommonSubexpressions(name="common_subexpressions_again"),
)


NECESSARY: tuple[GraphPass, ...] = (FoldBatchNorm(), ChannelsLast())
"""The passes without which there are operators and layouts that no kernel computes."""


def optimize(graph: Graph, passes: Sequence[GraphPass] = PIPELINE) -> Graph:
    """Apply `passes` in order. Inputs, and names and order of outputs, stay; results agree up to rounding.

    Raises: DefinitionError that names the pass after which the graph is malformed (a bug of that pass).
    """
    for graph_pass in passes:
        before = len(graph.nodes)
        graph = graph_pass.apply(graph)
        try:
            verify(graph)
        except DefinitionError as error:
            raise DefinitionError(f"after pass {graph_pass.name}: {error}") from error
        _log.debug("%s: %s: %d nodes, now %d", graph.name, graph_pass.name, before, len(graph.nodes))
    return graph
