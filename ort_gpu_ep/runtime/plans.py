"""The plans of a program that are on the device, by the input types that they serve."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.types import MAX_SHAPES, TensorType
from ort_gpu_ep.runtime.context import PlanContext
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.runtime.runs import Joins, Runs
from ort_gpu_ep.scheduler.plan import Plan
from ort_gpu_ep.scheduler.template import Filled, Specialization, Template


class Key(tuple[tuple[TensorType, ...], tuple[bytes, ...]]):
    """What the numbers of a plan follow from: the types of the inputs, and the content of those that decide on shapes.
    A pair whose hash is worked out once.
    """

    _hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash


Found: TypeAlias = tuple[Prepared, Filled]
"""A plan, and its numbers for one set of sizes."""


class Plans:
    """Not thread-safe: the context's lock is held.

    general: plans that hold for every size that answers their questions alike. specialized: those made for one set of
    sizes, in use or being warmed up. found: the plan of each set of types seen, the most recently used last. records:
    of sets of sizes that have a specialized plan, or could not get one. often: see Prepared. joins: see runs.py.
    """

    def __init__(self, context: PlanContext, often: Callable[[Filled], object], joins: Joins) -> None:
        self._context, self._often, self._joins = context, often, joins
        self.general = list[Prepared]()
        self.specialized = list[Prepared]()
        self.found: OrderedDict[Key, Found] = OrderedDict()
        self.records: dict[Key, Specialization] = {}
        self._runs: dict[Prepared, Runs] = {}

    def add(self, template: Template, compiled: list[Any] | None = None) -> Prepared:
        """Puts a plan on the device. compiled: its pipelines, where it is a specialized one. Raises ShaderError,
        DeviceError."""
        self._context.provide(template.plan.weights)
        self._context.going([*self.all, template.plan])
        prepared = Prepared(template, self._context, compiled, self._often)
        (self.specialized if prepared.is_specialized else self.general).append(prepared)
        self._context.release_packed(self.all)
        return prepared

    @property
    def all(self) -> list[Plan]:
        """Of all of them, as data."""
        return [p.template.plan for p in (*self.general, *self.specialized)]

    def fill(self, types: tuple[TensorType, ...], values: Mapping[int, Array]) -> Found | None:
        """A general plan that holds for these types, with their numbers: the most recently used one."""
        for prepared in sorted(self.general, key=lambda p: p.last_use, reverse=True):
            filled = prepared.template.fill(types, values)
            if filled is not None:
                return prepared, filled
        return None

    def remember(self, key: Key, found: Found) -> None:
        """These types have this plan from now on."""
        self.found[key] = found
        while len(self.found) > MAX_SHAPES:
            _, (owner, _) = self.found.popitem(last=False)
            if owner.is_specialized:
                self.drop(owner)

    def switch(self, key: Key, prepared: Prepared, filled: Filled) -> None:
        """Runs of these types have this specialized plan from now on; what the general one kept for them alone is
        freed."""
        if key in self.found:
            general, plan = self.found[key]
            self.runs(general).end(plan)
            general.free_slots()
        self.found[key] = prepared, filled
        prepared.last_use = next(self._context.uses)

    def runs(self, prepared: Prepared) -> Runs:
        """Those of a plan."""
        runs = self._runs.get(prepared)
        if runs is None:
            runs = self._runs[prepared] = Runs(prepared, self._joins)
        return runs

    def drop(self, prepared: Prepared) -> None:
        """Frees a plan; its sizes get another one when they come again. Raises DeviceError."""
        (self.specialized if prepared.is_specialized else self.general).remove(prepared)
        for key in [k for k, (owner, _) in self.found.items() if owner is prepared]:
            del self.found[key]
            self.records.pop(key, None)
        self._close(prepared)
        self._context.keep(self.all)

    def drop_oldest(self, plans: list[Prepared], most: int) -> None:
        """Frees those of some plans that were used least recently, until there are no more than so many. Raises
        DeviceError."""
        while len(plans) > most:
            self.drop(min(plans, key=lambda p: p.last_use))

    def shrink(self) -> None:
        """Frees what the plans in use have only for runs; the next run of a plan takes it again."""
        for prepared in {prepared for prepared, _ in self.found.values()}:
            prepared.free_slots()
            self.runs(prepared).free()

    def _close(self, prepared: Prepared) -> None:
        prepared.close()
        self.runs(prepared).free()
        del self._runs[prepared]

    def close(self) -> None:
        """Frees all of them."""
        for prepared in (*self.general, *self.specialized):
            self._close(prepared)
        self.general.clear()
        self.specialized.clear()
        self.found.clear()
