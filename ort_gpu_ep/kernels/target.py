"""Target of a plan: an adapter's limits, and the rules that choose between forms of a kernel. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INT64
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES, Figures

ALIGNMENT = 64
"""Where tensors begin that lie behind each other on the host: a cache line, and what mapping and copying ask for."""

OFFSET_ALIGNMENT = 256
"""Where in a buffer a binding may begin: a multiple of what WebGPU lets every adapter ask for."""

ADAPTER, INLINED, PACKED, WORKGROUP = "adapter", "decoders in other kernels", "packed elements", "workgroup memory"
"""What probes and quirks may put out of use besides shader files and device features: everything (the adapter is not
opened then), kernels with decoders in them, bindings of 8 and 16 bits, shared memory."""


LAST_ARRIVING = "last-arriving-workgroup"
"""Among Limits.features: the workgroup that an atomic counter tells to be the last sees what the others stored before
they counted. WGSL does not promise it, so an adapter has this feature only where a probe has seen it hold
(health/open_adapter.py)."""
SUBNORMAL_HALVES = "subnormal-float16"
"""Among Limits.features: unpack2x16float keeps float16 numbers below 2^-14. WGSL lets it flush them to zero; so
likewise."""
SUBGROUP_MATRIX = "subgroup-matrix"
"""Among Limits.features: WGSL's chromium_experimental_subgroup_matrix, which Dawn alone has."""
MATRIX_UNITS = "matrix-units"
"""Among Limits.features: with it Limits.fragment of float16 numbers is multiplied rightly into sums of float32, as a
probe has seen."""
MATRIX_BYTES = "matrix-units-int8"
"""Among Limits.features: likewise, of BYTE_FRAGMENTS."""
MATRIX_ATTENTION = "matrix-units-attention"
"""Among Limits.features: likewise, attention by such fragments, whose scores go from lane to lane of a subgroup."""
BYTE_UNIT_SHADERS = ("byte_units.wgsl", "pack_byte_rows.wgsl")
UNIT_SHADERS = ("matrix_product.wgsl", "unit_vectors.wgsl", "line_scales.wgsl", "part_scales.wgsl", "scaled_rows.wgsl")
"""Products on matrix units, and what scales their operands."""
ATTENTION_UNIT_SHADERS = ("attention_units.wgsl",)
SHOWN_FEATURES = frozenset({LAST_ARRIVING, SUBNORMAL_HALVES, MATRIX_UNITS, MATRIX_BYTES, MATRIX_ATTENTION})
"""What no adapter promises, and a probe shows."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """What matrix units multiply at a time: n rows of m columns of sums, each of k products."""

    n: int
    m: int
    k: int

    def __str__(self) -> str:
        return f"{self.n}x{self.m}x{self.k}"


FRAGMENTS = {
    f"float16 float32 {fragment}": fragment
    for fragment in (Fragment(16, 16, 16), Fragment(16, 8, 16), Fragment(8, 16, 16), Fragment(8, 8, 8))
}
"""By the configuration that a driver has to offer for it; the first of these that it does is taken. matrix_product.wgsl
and attention_units.wgsl are written for each of them."""
BYTE_FRAGMENTS = {
    f"int8 int32 {fragment}": fragment
    for fragment in (Fragment(16, 16, 32), Fragment(16, 16, 16), Fragment(16, 8, 32), Fragment(8, 8, 8))
}
"""Likewise, of bytes, for byte_units.wgsl."""
SUBGROUP_SIZE_CONTROL = "subgroup-size-control"
"""Among Limits.features: WGSL's feature of that name, by which a shader says how many invocations its subgroups
have."""

HALVED = frozenset({"f16", "f16acc"})
"""Values of the option `precision` with which weights are stored in float16."""
TF32 = "tf32"


class Tuned:
    """Key of a choice -> form that was measured to be the fastest. Does not change; compares by content, and its hash
    is at hand."""

    __slots__ = ("_forms", "_hash")

    def __init__(self, forms: Mapping[str, str] | None = None) -> None:
        self._forms = dict(forms or {})
        self._hash = hash(frozenset(self._forms.items()))

    def get(self, key: str) -> str:
        """The form, empty where none was measured."""
        return self._forms.get(key, "")

    def items(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._forms.items())

    def __len__(self) -> int:
        return len(self._forms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tuned) and self._hash == other._hash and self._forms == other._forms

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Tuned({self._forms})"

    def __reduce__(self) -> tuple[type[Tuned], tuple[dict[str, str]]]:
        return Tuned, (self._forms,)  # a hash of strings holds in one process only


UNTUNED = Tuned()
"""Of an adapter of which nobody has asked yet what was measured."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an adapter offers (WebGPU's guaranteed minimum by default). Sizes in bytes.

    max_loop_iterations: of all loops of an invocation together (records.py); the default is the least that any known
    driver does. disabled: (what, why) of what this driver can't be trusted with: a shader file, a device feature,
    INLINED, PACKED, WORKGROUP. subgroup_size: invocations of every subgroup of this adapter; 0 where it is not known,
    or differs between shaders. tuned: which forms of kernels are the fastest on it, as far as that was measured.
    figures: what the choice goes by where it was not. precision: the option of that name, of the session that plans.
    keeps_dense: what decodes a constant may run once for all runs. few_tokens: the option of that name. configurations:
    of matrix units, that the driver offers: types of operands and sums, rows x columns x products of a sum.
    configuration_subgroups: the least and the most invocations of a subgroup that go with each of them; empty where
    nobody tells.
    """

    features: frozenset[str] = frozenset()
    max_binding_nbytes: int = 128 << 20
    max_buffer_nbytes: int = 256 << 20
    max_buffers_per_stage: int = 8
    max_workgroup_nbytes: int = 16384
    max_invocations: int = 256
    max_groups_per_dimension: int = 65535
    offset_alignment: int = OFFSET_ALIGNMENT
    max_loop_iterations: int = 65535
    subgroup_size: int = 0
    disabled: tuple[tuple[str, str], ...] = ()
    tuned: Tuned = UNTUNED
    figures: Figures = DEFAULT_FIGURES
    precision: str = FLOAT32.name
    keeps_dense: bool = False
    few_tokens: int = 0
    configurations: tuple[str, ...] = ()
    configuration_subgroups: tuple[tuple[int, int], ...] = ()

    def of(self, config: Config) -> Limits:
        """For a session with these options: what they put out of use is `disabled`, too."""
        keeps = config.weights != "packed"
        asked = (config.precision, keeps, config.few_tokens)
        if not config.disabled and asked == (self.precision, self.keeps_dense, self.few_tokens):
            return self
        return replace(
            self,
            disabled=(*self.disabled, *config.disabled),
            precision=config.precision,
            keeps_dense=keeps,
            few_tokens=config.few_tokens,
        )

    def fills_subgroups(self, workgroup_size: int) -> bool:
        """Whether each subgroup of such a workgroup is known to have all of its invocations."""
        return self.subgroup_size > 0 and workgroup_size % self.subgroup_size == 0

    @property
    def int64(self) -> bool:
        """Whether shaders have 64-bit integers. Where not, such an element is a pair of words, the lower one first."""
        return self.allow("", INT64.feature)

    @property
    def fragment(self) -> Fragment | None:
        """What this adapter's matrix units multiply at a time of float16; None where the driver offers none that our
        shaders know."""
        return next((fragment for name, fragment in FRAGMENTS.items() if name in self.configurations), None)

    @property
    def byte_fragment(self) -> Fragment | None:
        """Likewise of bytes."""
        return next((fragment for name, fragment in BYTE_FRAGMENTS.items() if name in self.configurations), None)

    def unit_subgroup(self, known: Mapping[str, Fragment]) -> int:
        """Invocations of the subgroups of kernels on matrix units of these configurations; 0 where no size can be
        relied on.

        The adapter's one size, where the configuration goes with it. Else the one nearest to USUAL_SUBGROUP that does,
        where shaders can ask for it.
        """
        name = next((name for name in known if name in self.configurations), "")
        if not name:
            return 0
        least, most = dict(zip(self.configurations, self.configuration_subgroups, strict=False)).get(
            name, (USUAL_SUBGROUP, USUAL_SUBGROUP)
        )
        if least <= self.subgroup_size <= most:
            return self.subgroup_size if self.subgroup_size in UNIT_SUBGROUPS else 0
        asked = min(max(USUAL_SUBGROUP, least), most)
        return asked if SUBGROUP_SIZE_CONTROL in self.features and asked in UNIT_SUBGROUPS else 0

    def pinned_subgroup(self, known: Mapping[str, Fragment]) -> int:
        """The size that such a kernel has to ask for; 0 where it gets that anyway."""
        size = self.unit_subgroup(known)
        return size if size != self.subgroup_size else 0

    def allow(self, shader: str, *features: str) -> bool:
        """Whether a form of a kernel may be weighed: the adapter has these features, and nothing has put them or its
        shader out of use."""
        return set(features) <= self.features and not any(what in (shader, *features) for what, _ in self.disabled)


DEFAULT_LIMITS = Limits()
"""WebGPU's guaranteed minimum."""


def lacks(limits: Limits, precision: str) -> str:
    """Why an adapter can't do what the option `precision` asks for; empty where it can."""
    if precision == FLOAT32.name:
        return ""
    if precision == TF32:
        return no_matrix_units(limits)
    there = precision == "f16" or FLOAT16.feature in limits.features
    return _disabled(limits, PACKED, FLOAT16.feature) or (
        "" if there else f"the adapter lacks the feature {FLOAT16.feature}"
    )


def _disabled(limits: Limits, *needed: str) -> str:
    """Why something of this is not used on an adapter; empty where all of it is."""
    return next((f"{what} is not used on this adapter: {why}" for what, why in limits.disabled if what in needed), "")


def no_matrix_units(limits: Limits) -> str:
    """Why products can't be done by an adapter's matrix units; empty where they can."""
    if disabled := _disabled(
        limits, MATRIX_UNITS, SUBGROUP_MATRIX, FLOAT16.feature, "subgroup", WORKGROUP, *UNIT_SHADERS
    ):
        return disabled
    if SUBGROUP_MATRIX not in limits.features:
        return "matrix units need the library Dawn (webgpu=dawn) and a GPU that has them"
    if limits.fragment is None:
        return f"the adapter's matrix units can't be used: {_offered(limits, *FRAGMENTS)}"
    for feature in (FLOAT16.feature, "subgroup", MATRIX_UNITS):
        if feature not in limits.features:
            why = "no probe has shown right results" if feature == MATRIX_UNITS else f"the feature {feature} is missing"
            return f"the adapter's matrix units can't be used: {why}"
    return _without_size(limits, FRAGMENTS)


def no_attention_units(limits: Limits) -> str:
    """Likewise for attention."""
    missing = "the adapter's matrix units can't be used for attention: no probe has shown right results"
    disabled = _disabled(limits, MATRIX_ATTENTION, *ATTENTION_UNIT_SHADERS)
    return disabled or no_matrix_units(limits) or ("" if MATRIX_ATTENTION in limits.features else missing)


def no_byte_units(limits: Limits) -> str:
    """Likewise for products of bytes."""
    if disabled := _disabled(limits, MATRIX_BYTES, SUBGROUP_MATRIX, "subgroup", WORKGROUP, *BYTE_UNIT_SHADERS):
        return disabled
    if SUBGROUP_MATRIX in limits.features and limits.byte_fragment is None:
        return f"the adapter's matrix units can't be used for bytes: {_offered(limits, *BYTE_FRAGMENTS)}"
    missing = [feature for feature in (SUBGROUP_MATRIX, "subgroup", MATRIX_BYTES) if feature not in limits.features]
    if missing:
        return f"the adapter's matrix units can't be used for bytes: {', '.join(missing)}"
    return _without_size(limits, BYTE_FRAGMENTS)


def _without_size(limits: Limits, known: Mapping[str, Fragment]) -> str:
    if limits.unit_subgroup(known):
        return ""
    sizes = " or ".join(map(str, UNIT_SUBGROUPS))
    return (
        f"the adapter's matrix units can't be used: its subgroups have {limits.subgroup_size or 'unknown'} "
        f"invocations, and shaders "
        f"can't ask for {sizes} of those that go with its configurations"
    )


def _offered(limits: Limits, *known: str) -> str:
    return (
        f"of {', '.join(known)} the driver offers none, but "
        f"{', '.join(limits.configurations) or 'nothing that Dawn tells'}"
    )


def without_units(limits: Limits) -> Limits:
    """The same adapter, as one that has no matrix units."""
    return replace(limits, features=limits.features - {SUBGROUP_MATRIX, MATRIX_UNITS, MATRIX_BYTES, MATRIX_ATTENTION})


USUAL_SUBGROUP, UNIT_SUBGROUPS = 32, (8, 16, 32, 64)
"""Invocations of a subgroup for which kernels on matrix units were measured, and for which they are written."""


Because: TypeAlias = Literal["estimated", "measured", "forced"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several forms of a kernel.

    key: what there was to choose for, the same wherever the same forms would be weighed alike. form: the one taken.
    forms: all of them, by estimate the fastest first; ns: these estimates. because: what it was taken for.
    """

    key: str
    form: str
    forms: tuple[str, ...]
    ns: tuple[float, ...] = ()
    because: Because = "estimated"

    @property
    def estimates_ns(self) -> dict[str, float]:
        return dict(zip(self.forms, self.ns, strict=True))


@dataclass(frozen=True, slots=True)
class Forcing:
    """names: of forms, the first of which is taken wherever it is among those to choose from. made: the choices
    meanwhile, by key."""

    names: tuple[str, ...]
    made: dict[str, Choice]


FORCING: Forcing | None = None
"""What kernels/forms.py `forced` sets."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a builder may know of the adapter that its node is to run on."""

    limits: Limits = DEFAULT_LIMITS

    @property
    def figures(self) -> Figures:
        return self.limits.figures

    def choose(self, key: str, forms: Mapping[str, float]) -> Choice:
        """The form to take: the one that was measured to be the fastest on this adapter, else that of the smallest
        estimate.

        forms: estimated nanoseconds of each. A measured form that is not among them (of an older version, say) counts
        for nothing.
        """
        key = key if self.limits.precision == FLOAT32.name else f"{key}, {self.limits.precision}"
        ranked = sorted(forms, key=lambda form: forms[form])
        forced = next((name for name in FORCING.names if name in forms), "") if FORCING else ""
        taken: dict[Because, str] = {"forced": forced, "measured": self.limits.tuned.get(key)}
        because: Because = next((why for why, form in taken.items() if form in forms), "estimated")
        choice = Choice(
            key, taken.get(because, ranked[0]), tuple(ranked), tuple(float(forms[name]) for name in ranked), because
        )
        if FORCING:
            FORCING.made[key] = choice
        return choice


DEFAULT_TARGET = Target()
"""An adapter of which nothing is known."""
