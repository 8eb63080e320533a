"""`SearchOptions`: the parameters of the search.

Options are frozen and checked when made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import check_options, option

_PARAMETERS = {
    "eps_greedy": "eps_greedy",
    "sample_init_use_measured_ratio": "measured_ratio",
    "evolutionary_search_population": "population",
    "evolutionary_search_num_iters": "generations",
    "evolutionary_search_mutation_prob": "mutation_probability",
    "cpu_multi_level_tiling_structure": "tiling",
    "gpu_multi_level_tiling_structure": "gpu_tiling",
    "max_innermost_split_factor": "max_innermost",
    "retry_search_one_round_on_empty": "retries",
}
"""The parameters of TVM's search policy that mean the same here, with the names of our options."""

ADDED_RULES = ("TransformedConvolution", "BlocksOfRows", "TensorCoreTiling", "SplitK", "NegligibleReductions")
"""The sketch rules that Ansor does not have, and the condition of `AddRfactor` that it does not have."""

_MEANINGLESS = frozenset({"sample_init_min_population", "max_vectorize_size"})
"""Parameters of TVM without a counterpart: this search resamples by itself, and vector loops have no maximum length."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Every hyper-parameter of the program search; ratios lie between 0 and 1.

    Each part beyond sampling and evolution can be switched off.
    """

    # What TVM's search policy has too keeps TVM's default: population, generations, mutation, eps-greedy, measured
    # ratio, structures of tiles, the innermost limit, unroll limits and the ratio of parallel pieces.
    population: int = option(2048, least=1)
    """Programs that live at a time, over all sketches."""
    generations: int = option(4, least=0)
    """Rounds of selection, or fewer for a small batch."""
    # A round of four programs then takes 0.99 s of CPU time instead of 1.74 s, for programs that the model rates alike
    # (ResNet-18, eight tasks).
    batch_per_generation: int = option(16, least=1)
    """Each generation evolves for this many measured programs of a batch."""
    # A round of four programs then samples for 0.23 s instead of 0.29 s, and a minute has 460 to 500 trials,
    # not 390 (EfficientNet-B0).
    batch_per_placement: int = option(2, least=1)
    """Sample a placement of the small producers for each so many programs of a batch."""
    mutation_probability: float = option(0.85, least=0, most=1)
    """Share of the children that are mutated."""
    crossover_probability: float = option(0.6, least=0, most=1)
    """Share of the unmutated children that exchange columns with another parent."""
    eps_greedy: float = option(0.05, least=0, most=1)
    """Share of each batch that is drawn at random."""
    measured_ratio: float = option(0.2, least=0, most=1)
    """Largest share of the population that the best measured programs seed."""
    prior_ratio: float = option(0.75, least=0, most=1)
    """Share of the first selection, and of a task's first batch, that the analytical model decides."""
    prior_trials: int = option(64, least=0)
    """Results after which the analytical model weighs as much as the cost model; its weight decays from there, faster
    where its predictions were poor. 0: no weight."""
    # Evolution amplifies a model's errors, and the initial samples are free of them.
    sampled_ratio: float = option(0.5, least=0, most=1)
    """Share of the first batch, and a falling share of later ones, that are the best of the initial samples."""
    tiling: str = "SSRSRS"
    """Loop structure of a tiled stage on a CPU, outermost level first: S spatial, R reduction."""
    gpu_tiling: str = "SSSRRSRS"
    """Loop structure on a GPU: the first three levels are blocks, virtual threads and threads."""
    max_innermost: int = option(64, least=1)
    """Longest innermost part of a loop."""
    unroll_limits: tuple[int, ...] = (0, 16, 64, 512)
    """Values of `auto_unroll_max_step` on a CPU."""
    gpu_unroll_limits: tuple[int, ...] = (0, 16, 64, 512, 1024)
    """Values of `auto_unroll_max_step` on a GPU."""
    max_parallel_ratio: int = option(16, least=1)
    """Most iterations of a parallel loop per core, approximately."""
    without_rules: tuple[str, ...] = ()
    """Those of `ADDED_RULES` that are left out. Without all of them the sketches are Ansor's."""
    # Twice the 32 registers of AVX-512: the limit of `form_register_tiles`, beyond which a tile stays in memory.
    max_register_vectors: int = option(64, least=1)
    """Most vectors of a register tile."""
    max_location_variants: int = option(6, least=1)
    """Most placements of the small producers per sketch."""
    max_per_tiling: int = option(2, least=1)
    """Most candidates of a batch that share all their tile sizes."""
    sample_attempts: int = option(8, least=1)
    """Most sampling attempts while few programs are valid."""
    retries: int = option(1, least=0)
    """Retries, with other samples, of a round that yields nothing new."""
    # Each placement is replayed for itself, however few programs it has: small ones cost most of a generation's time.
    extinction_ratio: float = option(0.5, least=0, most=1)
    """A placement whose programs get less than this share of an equal part of the parents dies out."""
    static_filters: bool = True
    """Drop programs that need more registers than exist, or unroll to more than `max_straight_line`."""
    max_straight_line: int = option(8192, least=1)
    """Most vector operations of straight-line code."""
    transfer_ratio: float = option(0.1, least=0, most=1)
    """Largest share of a batch that is good programs of similar tasks, fitted to this task's sizes. 0: none."""
    finish_ratio: float = option(0.25, least=0, most=1)
    """At most this share of the budget before its end, half of each batch is neighbors of the best. 0: never."""
    finish_parents: int = option(2, least=1)
    """Number of best programs whose neighbors are tried."""
    learn_failures: bool = True
    """Train the model on failed programs as having no speed."""
    refuse_spills: int = option(-1, least=-1)
    """Drop GPU programs that spill more bytes. -1: no check, which saves half a second per program."""
    # How often each kind of mutation is drawn; TVM's weights of tiles, unrolling and locations are 0.90, 0.04 and 0.05.
    tile_weight: float = option(0.86, least=0)
    """Moves a factor between the levels of a split."""
    unroll_weight: float = option(0.04, least=0)
    """Draws an unroll limit."""
    location_weight: float = option(0.05, least=0)
    """Draws a placement of the small producers."""
    parallel_weight: float = option(0.04, least=0)
    """Draws how many loops run in parallel."""
    vector_weight: float = option(0.01, least=0)
    """Switches a vector loop on or off."""
    width_weight: float = option(0.1, least=0)
    """Draws the width of a vector access or of a block, on a GPU."""

    @classmethod
    def of_params(cls, params: Mapping[str, object]) -> Self:
        """The options for the parameters of TVM's search policy; parameters without a counterpart change nothing.

        Raises: OptionError for a name that TVM does not know, or an invalid value.
        """
        values: dict[str, Any] = {}
        for name, value in params.items():
            if name == "ansor_rules":
                values.update({"without_rules": ADDED_RULES} if value else {})
            elif name in _PARAMETERS:
                values[_PARAMETERS[name]] = value
            elif name == "disable_change_compute_location":
                values.update({"max_location_variants": 1} if value else {})
            elif name not in _MEANINGLESS:
                others = ("ansor_rules", "disable_change_compute_location")
                known = ", ".join(sorted((*_PARAMETERS, *_MEANINGLESS, *others)))
                raise OptionError(f"the search policy has no parameter {name!r}; known: {known}")
        return cls(**values)

    def __post_init__(self) -> None:
        """Check every field. Raises: OptionError naming the field, its value and what it may be."""
        check_options(self)
        for name in ("tiling", "gpu_tiling"):
            word = str(getattr(self, name)).upper()
            if not word or set(word) - set("SR") or "S" not in word:
                raise OptionError(f"{name} must be a word of the letters S and R with at least one S, not {word!r}")
            object.__setattr__(self, name, word)
        if not self.gpu_tiling.startswith("SSS"):
            raise OptionError(
                f"gpu_tiling must begin with SSS, for blocks, virtual threads and threads, not {self.gpu_tiling!r}"
            )
        if set(self.without_rules) - {*ADDED_RULES}:
            raise OptionError(f"without_rules may name {', '.join(ADDED_RULES)}, not {self.without_rules!r}")
        for name in ("unroll_limits", "gpu_unroll_limits"):
            limits = getattr(self, name)
            if not limits or not all(isinstance(limit, int) and limit >= 0 for limit in limits):
                raise OptionError(f"{name} must name at least one limit, none below 0, not {limits!r}")
