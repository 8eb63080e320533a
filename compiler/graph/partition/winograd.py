"""Winograd's minimal filtering for fused groups with a 3x3 convolution of stride 1, also in three dimensions.

Weights must be constant and tensors float32 or halves, which are transformed in float32, channels last; in three
dimensions the last two have the 3x3 taps.

F(4x4, 3x3) needs a quarter of the products and four times the weights; F(2x2, 3x3) 4/9 of the products and 16/9 of the
weights. With few tiles the larger weights cost more than the products save, so then the smaller transform is offered,
or none.
"""

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from retune.compiler.core.dtype import HALVES, item_bytes, sum_type
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.graph.evaluate import evaluate_node
from retune.compiler.graph.ir import Array, Graph, Node, Value
from retune.compiler.graph.partition.fuse import FusedOp
from retune.compiler.model.features.estimate import PER_CYCLE
from retune.compiler.ops.winograd import KERNEL, transformed_weight

# Products grow with channels in x out, transforms with in + out.
LEAST_CHANNELS = 16
"""With fewer channels, in or out, the transforms cost more than the products they save."""
LEAST_TILES = 12
"""Least products per transformed weight: below that memory is the limit."""
MANY_TILES = 64
"""From so many tiles of the larger transform on, the smaller one has no prospect."""
TOLERANCE = 1e-5
"""The largest error of a transformed convolution, relative to its largest result, on random inputs with the layer's own
weights; a direct convolution has about 1e-6.
"""
_DIRECT, _PRODUCTS = 0.85, 0.7
"""Shares of the peak that direct convolutions and the products of transformed ones reach in default schedules."""
_PER_ELEMENT, _BYTES_PER_CYCLE = 3.0, 10.0
"""Cycles of a core per element in the transformed space, which is computed, stored and reloaded; bytes of weights per
cycle, since they exceed the near caches. All four are fitted to convolutions of 32 to 512 channels on a Zen 3 core, so
that predicted speedups are below measured speedups.
"""
_PROBE, _PROBED_CHANNELS = 8, 32
"""Height and width of the image for the error measurement, and its number of channels of the result."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Another way to compute the result of a group: `group` reads the value `weight`, a constant transformed for tiles
    of `tile` x `tile` results from the network's constant `source`.
    """

    group: FusedOp
    weight: Value
    source: str
    tile: int

    def declare(self, graph: Graph) -> Graph:
        """The graph with the new constant, without contents."""
        # Strides of 0: the description needs shapes only, and transformed weights of a network may have hundreds of MB.
        return self._with(graph, np.broadcast_to(np.zeros((), self.weight.dtype), self.weight.shape))

    def compute(self, graph: Graph) -> Graph:
        """The graph with the new constant."""
        return self._with(graph, transformed_weight(graph.constants[self.source], self.tile))

    def _with(self, graph: Graph, array: Array) -> Graph:
        name = self.weight.name
        return replace(graph, constants={**graph.constants, name: array}, values={**graph.values, name: self.weight})


@dataclass(frozen=True, slots=True)
class Winograd:
    """Compute tiles of `tile` x `tile` results in the space in which a convolution is a product of elements.

    A kind of alternative to a group: `partition` makes a task of each alternative, and a network is compiled with the
    alternative whose record is fastest. Without records, one that is predicted to be much faster is used.
    """

    tile: int

    @property
    def name(self) -> str:
        """Part of the names of its tasks."""
        return f"winograd{self.tile}"

    def variant(self, graph: Graph, group: FusedOp) -> Variant | None:
        """The group in another form; None if the transform does not apply or has no prospect."""
        node = group.core
        if not self._applies(graph, node):
            return None
        weight = graph.values[node.inputs[1]]
        # Lavin and Gray, 2015: F(m x m, r x r) needs (m + r - 1)^2 products for m^2 results, in place of m^2 r^2.
        alpha = self.tile + KERNEL - 1
        shape = (alpha, alpha, *weight.shape[:-4], *weight.shape[-2:])
        packed = Value(f"{weight.name}.{self.name}", shape, sum_type(weight.dtype))
        nodes = tuple(self._node(other, packed.name) if other is node else other for other in group.nodes)
        return Variant(FusedOp(nodes, group.anchor), packed, weight.name, self.tile)

    def is_accurate(self, graph: Graph, group: FusedOp) -> bool:
        """Whether the error is within `TOLERANCE` on a small random image, with the group's constants."""
        node = group.core
        weight = graph.constants[node.inputs[1]]
        # Every result channel is computed independently, so evenly spaced channels are a sample of the error.
        weight = weight[..., :: max(1, weight.shape[-1] // _PROBED_CHANNELS)]
        # A fixed seed: every process of a run must agree on the alternatives of a layer.
        depth = [_PROBE + taps - 1 for taps in weight.shape[:-4]]
        image = np.random.default_rng(0).standard_normal((1, *depth, _PROBE, _PROBE, weight.shape[-2]))
        # The transforms of larger tiles have larger constants and lose accuracy by cancellation, depending on the
        # weights. The error is measured with the layer's own weights instead of being bounded for all.
        exact = evaluate_node(node, [image, weight.astype(np.float64)])
        operands = [image.astype(sum_type(weight.dtype.name)), transformed_weight(weight, self.tile)]
        result: Array = evaluate_node(self._node(node, ""), operands)
        return float(np.max(np.abs(result - exact))) <= TOLERANCE * float(np.max(np.abs(exact)))

    def speedup(self, graph: Graph, group: FusedOp, hardware: HardwareParams) -> float:
        """The predicted speedup over the group, in default schedules: the ratio of estimated cycles, of fewer products
        against transforms of the image and larger weights.
        """
        constant, result = graph.values[group.core.inputs[1]], graph.values[group.core.output]
        dtype, weight = constant.dtype, constant.shape
        if dtype in HALVES and not hardware.converts(dtype):
            return 0.0  # Instructions multiply halves faster.
        # Multiply-adds per pixel of the result and tap of a 3x3 window.
        terms, alpha = prod(weight[:-4]) * prod(weight[-2:]), self.tile + KERNEL - 1
        peak = hardware.multiply_adds_per_cycle(PER_CYCLE)
        direct = prod(result.shape[:-1]) * KERNEL**2 * terms / (_DIRECT * peak)
        products = _tiles(result, self.tile) * alpha**2 * terms / (_PRODUCTS * peak)
        elements = _tiles(result, self.tile) * alpha**2 * sum(weight[-2:])
        weights = alpha**2 * terms * item_bytes("float32")
        around = (_PER_ELEMENT * elements + weights / _BYTES_PER_CYCLE) / max(1, hardware.num_cores)
        return direct / (products + around)

    def _node(self, node: Node, weight: str) -> Node:
        attrs = {"pads": node.attrs["pads"], "tile": self.tile}
        return replace(node, op=f"winograd_{node.op}", inputs=(node.inputs[0], weight), attrs=attrs)

    def _applies(self, graph: Graph, node: Node) -> bool:
        if node.op not in ("conv2d", "conv3d") or node.inputs[1] not in graph.constants:
            return False
        weight, result = graph.values[node.inputs[1]], graph.values[node.output]
        plain = {1} == {*node.ints("strides"), *node.ints("dilations"), node.integer("groups")}
        if not plain or not node.text("layout").endswith("C") or weight.shape[-4:-2] != (KERNEL, KERNEL):
            return False
        # Negative pads crop the image, which the transforms do not.
        if min(node.ints("pads")) < 0:
            return False
        if weight.dtype not in ("float32", *HALVES) or min(weight.shape[-2:]) < LEAST_CHANNELS:
            return False
        few = _tiles(result, self.tile) < LEAST_TILES
        return not few and not any(
            _tiles(result, other.tile) >= MANY_TILES for other in WINOGRAD if other.tile > self.tile
        )


def _tiles(result: Value, tile: int) -> int:
    height, width = result.shape[-3:-1]
    return prod(result.shape[:-3]) * -(-height // tile) * -(-width // tile)


WINOGRAD = (Winograd(4), Winograd(2))
"""The offered transforms."""


def winograd_for(target: Target) -> tuple[Winograd, ...]:
    """The transforms for kernels of `target`: the search has sketches of them for CPUs alone."""
    return WINOGRAD if target.traits.has_winograd else ()
