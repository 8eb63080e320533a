"""`SearchOptions`: the parameters of the search.

Options are frozen and checked when made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

from retune.compiler.errors import OptionError

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
"""The parameters of TVM's search policy that mean the same here, and the options that they are."""

_MEANINGLESS = frozenset({"sample_init_min_population", "max_vectorize_size"})
"""Those that steer what this search has not: it samples again by itself, and a vector loop is as long as it is."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Every hyper-parameter of the program search.

    `population` programs live through `generations` rounds of selection, or through fewer for a small batch: one for
    every `batch_per_generation` programs that it measures. A child is mutated with probability
    `mutation_probability`; of the others, `crossover_probability` exchange columns with another parent. `eps_greedy` of
    each batch is drawn at random, and the best measured programs seed up to `measured_ratio` of the population.
    The analytical model decides `prior_ratio` of the first selection and of a task's first batch. Its weight equals the
    cost model's after `prior_trials` results and decays from there (0: no weight), faster where its predictions were
    poor. Evolution amplifies a model's errors, so `sampled_ratio` of the first batch, and a falling share of later
    ones, are the best of the initial samples.

    `tiling` is the loop structure of a tiled stage, outermost level first (S spatial, R reduction), `gpu_tiling` that
    on a GPU, where the first three levels are blocks, virtual threads and threads; `tensor_cores` lets
    products of matrices be done by the tensor cores of GPUs that have them. The innermost part of a loop is at most
    `max_innermost`. A register tile never has more than `max_register_vectors` vectors. A parallel loop has at
    most about `max_parallel_ratio` pieces a core. At most `max_location_variants` placements of the small producers are
    considered a sketch, at most `max_per_tiling` candidates of a batch share all their tile sizes, and sampling is
    repeated at most `sample_attempts` times where few programs are valid; a round that yields nothing new is tried
    again, with other samples, at most `retries` times. A placement whose programs get less than `extinction_ratio` of
    an equal share of the parents has none in the next generation. The `…_weight` fields say how often each kind of
    mutation is drawn.

    Each part beyond sampling and evolution can be switched off. `static_filters` drop programs that need more
    registers than exist or unroll to more than `max_straight_line` operations. Up to `transfer_ratio` of a batch are
    good programs of similar tasks, fitted to this one's sizes (0: none). When at most `finish_ratio` of the budget is
    left, half of each batch are neighbors, one column changed, of the `finish_parents` best programs (0: never).
    `learn_failures` shows failed programs to the model as having no speed. Where NVIDIA's assembler is found,
    `refuse_spills` drops GPU programs that spill more than so many bytes (-1: not checked, which saves about half a
    second a program).
    """

    population: int = 2048
    generations: int = 4
    batch_per_generation: int = 16
    mutation_probability: float = 0.85
    crossover_probability: float = 0.6
    eps_greedy: float = 0.05
    measured_ratio: float = 0.2
    prior_ratio: float = 0.75
    prior_trials: int = 64
    sampled_ratio: float = 0.5
    tiling: str = "SSRSRS"
    gpu_tiling: str = "SSSRRSRS"
    max_innermost: int = 64
    unroll_limits: tuple[int, ...] = (0, 16, 64, 512)
    gpu_unroll_limits: tuple[int, ...] = (0, 16, 64, 512, 1024)
    max_parallel_ratio: int = 16
    tensor_cores: bool = True
    max_register_vectors: int = 64
    max_location_variants: int = 6
    max_per_tiling: int = 2
    sample_attempts: int = 8
    retries: int = 1
    extinction_ratio: float = 0.5
    static_filters: bool = True
    max_straight_line: int = 8192
    transfer_ratio: float = 0.1
    finish_ratio: float = 0.25
    finish_parents: int = 2
    learn_failures: bool = True
    refuse_spills: int = -1
    tile_weight: float = 0.86
    unroll_weight: float = 0.04
    location_weight: float = 0.05
    parallel_weight: float = 0.04
    vector_weight: float = 0.01
    width_weight: float = 0.1

    @classmethod
    def of_params(cls, params: Mapping[str, Any]) -> Self:
        """The options that the parameters of TVM's search policy ask for; those that mean nothing here change nothing.

        Raises: OptionError for a name that TVM does not know, or a value that makes no sense.
        """
        values: dict[str, Any] = {}
        for name, value in params.items():
            if name in _PARAMETERS:
                values[_PARAMETERS[name]] = value
            elif name == "disable_change_compute_location":
                values.update({"max_location_variants": 1} if value else {})
            elif name not in _MEANINGLESS:
                known = ", ".join(sorted((*_PARAMETERS, *_MEANINGLESS, "disable_change_compute_location")))
                raise OptionError(f"the search policy has no parameter {name!r}; known: {known}")
        return cls(**values)

    def __post_init__(self) -> None:
        """Check every field. Raises: OptionError naming the field, its value and what it may be."""
        whole = (
            ("population", 1),
            ("generations", 0),
            ("batch_per_generation", 1),
            ("prior_trials", 0),
            ("max_innermost", 1),
            ("max_parallel_ratio", 1),
            ("max_register_vectors", 1),
            ("max_location_variants", 1),
            ("max_per_tiling", 1),
            ("sample_attempts", 1),
            ("retries", 0),
            ("max_straight_line", 1),
            ("finish_parents", 1),
        )
        for name, least in (*whole, ("refuse_spills", -1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name} must be an integer of at least {least}, not {value!r}")
        ratios = (
            "mutation_probability",
            "crossover_probability",
            "eps_greedy",
            "measured_ratio",
            "prior_ratio",
            "sampled_ratio",
            "transfer_ratio",
            "finish_ratio",
            "extinction_ratio",
        )
        for name in ratios:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
                raise OptionError(f"{name} must lie between 0 and 1, not {value!r}")
        for name in (kind for kind in type(self).__slots__ if kind.endswith("_weight")):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not isfinite(value) or value < 0.0:
                raise OptionError(f"{name} must be a finite number of at least 0, not {value!r}")
        for name in ("tiling", "gpu_tiling"):
            word = str(getattr(self, name)).upper()
            if not word or set(word) - set("SR") or "S" not in word:
                raise OptionError(f"{name} must be a word of the letters S and R with at least one S, not {word!r}")
            object.__setattr__(self, name, word)
        if not self.gpu_tiling.startswith("SSS"):
            raise OptionError(
                f"gpu_tiling must begin with SSS, for blocks, virtual threads and threads, not {self.gpu_tiling!r}"
            )
        for name in ("unroll_limits", "gpu_unroll_limits"):
            limits = getattr(self, name)
            if not limits or not all(isinstance(limit, int) and limit >= 0 for limit in limits):
                raise OptionError(f"{name} must name at least one limit, none below 0, not {limits!r}")
