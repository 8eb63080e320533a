"""Fuses transposes into batched products, which then read and write their tensors in the given layout.

The innermost axis of the result stays innermost in the result and in its operand, so loops over it still load and store
whole vectors. A transpose that would change this stays a kernel, unless each of its elements takes part in only one
product.

before: q' = transpose(q)  (b,m,h,k -> b,h,m,k)        after: contract(q, k) {bmhk, bhkn -> bmhn}
        batch_matmul(reshape(q'), k)
"""

from collections.abc import Mapping, Sequence
from math import prod
from string import ascii_lowercase

from retune.compiler.graph.builder import GraphBuilder, rewrite, rewrite_until_stable
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.rules.layout_rules import merge_reshapes
from retune.compiler.ir.dims import estimate

Words = tuple[str, str, str]
"""The letters of the axes of both operands and of the result."""

_FEW = 2
"""With fewer products per element, a transpose costs more than it saves."""
_PLAIN: Mapping[Words, str] = {("abd", "adc", "abc"): "batch_matmul", ("ac", "cb", "ab"): "dense"}


_ROUNDS = 8
"""A round moves transposes past one operator; a chain between two products is short."""


def fuse_transposes(graph: Graph) -> Graph:
    """Fuse transposes into adjacent products, and express each product by its simplest operator."""
    graph = rewrite_until_stable(rewrite(graph, _spell_batch), _move_transposes, _ROUNDS)
    return rewrite(graph, _simplify)


def _spell_batch(builder: GraphBuilder, node: Node) -> str | None:
    """A batched product whose batch is split into the axes that one operand had before a reshape merged them."""
    if node.op != "batch_matmul":
        return None
    shapes = [builder.value(name).shape for name in node.inputs]
    batch = shapes[0][:1]
    for name, shape in zip(node.inputs, shapes, strict=True):
        source = builder.producer(name)
        before = builder.value(source.inputs[0]).shape if source is not None and source.op == "reshape" else ()
        merged = sum(extent != 1 for extent in before[:-2]) > 1
        if merged and before[-2:] == shape[1:] and len(before) <= len(ascii_lowercase):
            batch = before[:-2]
            break
    letters = ascii_lowercase[: len(batch)]
    operands = [_as_shape(builder, name, (*batch, *shape[1:])) for name, shape in zip(node.inputs, shapes, strict=True)]
    words = (f"{letters}xz", f"{letters}zy", f"{letters}xy")
    result = _contract(builder, operands, words, node)
    return _as_shape(builder, result, (shapes[0][0], shapes[0][1], shapes[1][2]))


def _as_shape(builder: GraphBuilder, name: str, shape: tuple[int, ...]) -> str:
    """The value reshaped to `shape`, or the source of an existing reshape if that has this shape."""
    source = builder.producer(name)
    if source is not None and source.op == "reshape":
        name = source.inputs[0]
    return name if builder.value(name).shape == shape else builder.emit("reshape", [name], {"shape": shape})


def _contract(builder: GraphBuilder, operands: Sequence[str], words: Words, node: Node) -> str:
    attrs = dict(zip(("left", "right", "result"), words, strict=True))
    return builder.emit("contract", operands, attrs, name=node.name, output=node.output)


def _words(node: Node) -> Words:
    return node.text("left"), node.text("right"), node.text("result")


def _move_transposes(graph: Graph) -> Graph:
    producers, consumers = graph.producers(), graph.consumers()

    def convert(builder: GraphBuilder, node: Node) -> str | None:
        if node.op == "contract":
            return _reading_untransposed(builder, node)
        if node.op == "reshape":
            return merge_reshapes(builder, node)
        original = producers[node.output].inputs[0]
        if node.op == "transpose" and _is_seldom_used(graph, node.output, consumers[node.output]):
            return None
        apart = _before_units(builder, node)
        if apart is not None:
            return apart
        if node.op == "transpose" and len(consumers[original]) == 1 and original not in graph.outputs:
            return _writing_transposed(builder, node)
        return None

    return rewrite(graph, convert)


def _before_units(builder: GraphBuilder, node: Node) -> str | None:
    """transpose(reshape(x)) -> reshape(transpose(x)), if the reshape only adds or removes axes of extent 1."""
    source = builder.producer(node.inputs[0]) if node.op == "transpose" else None
    if source is None or source.op != "reshape":
        return None
    before, after = (builder.value(name).shape for name in (source.inputs[0], source.output))
    wide = [axis for axis, extent in enumerate(before) if extent != 1]
    # Axes of extent 1 do not affect the order of elements, so the reshape commutes with any transpose of the others.
    if [before[axis] for axis in wide] != [extent for extent in after if extent != 1]:
        return None
    wide_axes = iter(wide)
    came_from = [next(wide_axes) if extent != 1 else -1 for extent in after]
    units = [axis for axis, extent in enumerate(before) if extent == 1]
    perm = (*units, *(came_from[axis] for axis in node.ints("perm") if came_from[axis] >= 0))
    turned = builder.emit("transpose", [source.inputs[0]], {"perm": perm}, name=node.name, output=node.output)
    return builder.emit("reshape", [turned], {"shape": tuple(after[axis] for axis in node.ints("perm"))})


def _reading_untransposed(builder: GraphBuilder, node: Node) -> str | None:
    words, operands = list(_words(node)), list(node.inputs)
    last = words[2][-1:]
    for index in range(2):
        source = builder.producer(operands[index])
        if source is None or source.op != "transpose":
            continue
        word = words[index]
        turned = "".join(word[source.ints("perm").index(axis)] for axis in range(len(word)))
        moves_last = word[-1] == last and turned[-1] != last
        # Loads along the vector loop would become strided. A copy by a separate transpose pays off if each element is
        # used often.
        if moves_last and _uses(words, builder.value(operands[1 - index]).shape, index) >= _FEW:
            continue
        operands[index], words[index] = source.inputs[0], turned
    if tuple(operands) == node.inputs:
        return None
    return _contract(builder, operands, (words[0], words[1], words[2]), node)


def _uses(words: Sequence[str], other: tuple[int, ...], index: int) -> int:
    """Number of products that use an element of operand `index`; `other` is the shape of the other operand."""
    letters = zip(words[1 - index], other, strict=True)
    return estimate(prod(extent for letter, extent in letters if letter not in words[index]))


def _is_seldom_used(graph: Graph, name: str, readers: Sequence[Node]) -> bool:
    """Whether only products read a value, each of its elements a few times."""
    uses = [
        _uses(_words(reader), graph.values[reader.inputs[1 - index]].shape, index) if reader.op == "contract" else _FEW
        for reader in readers
        for index, operand in enumerate(reader.inputs)
        if operand == name
    ]
    return name not in graph.outputs and max(uses, default=_FEW) < _FEW


def _writing_transposed(builder: GraphBuilder, node: Node) -> str | None:
    source, perm = builder.producer(node.inputs[0]), node.ints("perm")
    # Stores stay contiguous only if the innermost axis stays innermost.
    if source is None or source.op != "contract" or perm[-1] != len(perm) - 1:
        return None
    left, right, result = _words(source)
    return _contract(builder, source.inputs, (left, right, "".join(result[axis] for axis in perm)), node)


def _simplify(builder: GraphBuilder, node: Node) -> str | None:
    """The product without axes of extent 1, with axes that are always adjacent merged, by its plain name."""
    if node.op != "contract":
        return None
    words = _words(node)
    shapes = [builder.value(name).shape for name in node.inputs]
    extents: dict[str, int] = {}
    for word, shape in zip(words[:2], shapes, strict=True):
        extents.update(zip(word, shape, strict=True))
    # Axes that are adjacent in all operands are one axis: fewer loops, longer vectors, and more products that equal a
    # plain `dense` or `batch_matmul` and share its tuning task.
    groups = _groups([[letter for letter in word if extents[letter] != 1] for word in words])
    names: dict[str, str] = {}
    short: list[str] = []
    for word in (words[2], *words[:2]):
        heads = [letter for letter in word if letter in groups]
        for head in heads:
            names.setdefault(head, ascii_lowercase[len(names)])
        short.append("".join(names[head] for head in heads))
    sizes = {names[head]: prod(extents[letter] for letter in group) for head, group in groups.items() if head in names}
    result, left, right = short
    operands = [
        _as_shape(builder, name, tuple(sizes[letter] for letter in word))
        for name, word in zip(node.inputs, (left, right), strict=True)
    ]
    plain = _PLAIN.get((left, right, result))
    if plain is not None:
        made = builder.emit(plain, operands, name=node.name, output=node.output)
    else:
        made = _contract(builder, operands, (left, right, result), node)
    return _as_shape(builder, made, tuple(extents[letter] for letter in words[2]))


def _groups(words: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Groups of letters that are adjacent in every word that has any of them, by the first letter."""
    following: dict[str, set[str]] = {}
    heading: set[str] = set()
    for word in filter(None, words):
        for letter, after in zip(word, (*word[1:], ""), strict=True):
            following.setdefault(letter, set()).add(after)
        heading.update(word[:1])
    joined = {
        letter: after
        for letter, (after, *others) in ((letter, tuple(followers)) for letter, followers in following.items())
        if after and not others and after not in heading and _only_after(letter, after, words)
    }
    groups: dict[str, tuple[str, ...]] = {}
    for letter in following:
        if letter in joined.values():
            continue
        group = [letter]
        while group[-1] in joined:
            group.append(joined[group[-1]])
        groups[letter] = tuple(group)
    return groups


def _only_after(letter: str, after: str, words: Sequence[Sequence[str]]) -> bool:
    return all(word[index - 1] == letter for word in words for index in range(1, len(word)) if word[index] == after)
