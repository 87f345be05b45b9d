"""Which tensors of a checkpoint the weights of a layer's experts are put together from."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pagoda.models.decoder import ExpertsSpec
from pagoda.models.names import ExpertNames
from pagoda.models.part import Part, Parts


@dataclass(frozen=True, slots=True)
class ExpertsParts:
    """What each field of `ExpertsWeights` is merged from; empty where there is none."""

    router: Parts
    gate: tuple[Parts, ...]
    up: tuple[Parts, ...]
    down: tuple[Parts, ...]
    num_used: int
    """Experts of each row."""
    times: int = 1
    """How many experts each that is listed stands for."""
    router_bias: Parts = ()
    correction: Parts = ()
    gate_bias: Parts = ()
    up_bias: Parts = ()
    down_bias: Parts = ()
    shared_gate: Parts = ()
    shared_up: Parts = ()
    shared_down: Parts = ()
    shared_gate_bias: Parts = ()
    shared_up_bias: Parts = ()
    shared_down_bias: Parts = ()

    @classmethod
    def of(
        cls, spec: ExpertsSpec, names: ExpertNames, prefix: str, hidden_size: int, listed: int
    ) -> ExpertsParts:
        """The parts of a layer's experts in a checkpoint that calls them so: the first `listed`, by
        which their number can be divided."""
        return _Tensors(spec, names, prefix, hidden_size, listed).parts()

    @property
    def num_experts(self) -> int:
        """Those that are listed, and those that they stand for."""
        return len(self.gate) * self.times

    @property
    def every_row_reads(self) -> tuple[Parts, ...]:
        """Those of the weights that each row meets."""
        own = (getattr(self, name) for name in _OF_EVERY_ROW)
        return tuple(parts for parts in own if parts)

    @property
    def of_chosen(self) -> tuple[Parts, ...]:
        """Those of the weights of experts that a row may be sent to, each by itself."""
        biases = (self.gate_bias, self.up_bias, self.down_bias)
        return (*self.gate, *self.up, *self.down, *(parts for parts in biases if parts))


_CHOSEN = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias", "num_used", "times")
"""Fields that are no weights that each row meets."""
_OF_EVERY_ROW = tuple(each.name for each in fields(ExpertsParts) if each.name not in _CHOSEN)


@dataclass(frozen=True, slots=True)
class _Tensors:
    spec: ExpertsSpec
    names: ExpertNames
    prefix: str
    hidden: int
    listed: int

    def parts(self) -> ExpertsParts:
        spec, names, hidden = self.spec, self.names, self.hidden
        count, inner = spec.num_experts, spec.intermediate_size
        experts = range(self.listed)
        router: Parts = (self._whole(names.router, count, hidden),)
        if spec.shared_gate:
            whole = (hidden,) if names.shared_router_is_vector else None
            row = Part(f"{self.prefix}{names.shared_router}", (1, hidden), whole=whole)
            router = (*router, row)
        with_bias = experts if spec.bias else ()
        return ExpertsParts(
            router=router,
            gate=tuple((self._gate_up(names.weight, 0, number, hidden),) for number in experts),
            up=tuple((self._gate_up(names.weight, 1, number, hidden),) for number in experts),
            down=tuple((self._down(names.weight, number, inner),) for number in experts),
            num_used=spec.num_used,
            times=count // self.listed,
            router_bias=(self._whole(names.router_bias, count),) if spec.router_bias else (),
            correction=self._correction() if spec.correction_bias else (),
            gate_bias=tuple(self._gate_up(names.bias, 0, number) for number in with_bias),
            up_bias=tuple(self._gate_up(names.bias, 1, number) for number in with_bias),
            down_bias=tuple(self._down(names.bias, number) for number in with_bias),
            **self._shared(),
        )

    def _correction(self) -> Parts:
        """In float32, as stored: what tells experts apart is less than bfloat16 can tell."""
        name, count = f"{self.prefix}{self.names.correction}", self.spec.num_experts
        whole = (1, count) if self.names.correction_is_row else None
        return (Part(name, (count,), whole=whole, held_as="float32"),)

    def _shared(self) -> dict[str, Parts]:
        shared, names, hidden = self.spec.shared, self.names, self.hidden
        if shared is None:
            return {}
        inner = shared.intermediate_size
        found: dict[str, Parts] = {}
        for kind, suffix, columns in (("weight", "", (hidden,)), ("bias", "_bias", ())):
            if kind == "bias" and not shared.bias:
                continue
            for place, name in enumerate((names.shared_gate, names.shared_up)):
                shape, whole = (inner, *columns), (2 * inner, *columns)
                one = Part(f"{self.prefix}{name}.{kind}", shape)
                if names.shared_gate_up:
                    merged = f"{self.prefix}{names.shared_gate_up}.{kind}"
                    one = Part(merged, shape, first_row=place * inner, whole=whole)
                found[("shared_gate", "shared_up")[place] + suffix] = (one,)
            shape = (hidden, inner) if columns else (hidden,)
            found[f"shared_down{suffix}"] = (
                Part(f"{self.prefix}{names.shared_down}.{kind}", shape),
            )
        return found

    def _whole(self, name: str, *shape: int) -> Part:
        return Part(f"{self.prefix}{name}", shape)

    def _gate_up(self, ending: str, place: int, number: int, *columns: int) -> Part:
        """Gate, at place 0, or up of an expert."""
        names, inner = self.names, self.spec.intermediate_size
        if not names.gate_up:
            return self._of((names.gate, names.up)[place] + ending, number, inner, columns)
        return self._of(names.gate_up + ending, number, 2 * inner, columns, place)

    def _down(self, ending: str, number: int, *columns: int) -> Part:
        return self._of(self.names.down + ending, number, self.hidden, columns)

    def _of(
        self, name: str, number: int, rows: int, columns: tuple[int, ...], half: int | None = None
    ) -> Part:
        """An expert's tensor, or one of the halves of its rows."""
        names = self.names
        is_own = "{}" in name
        count = 1 if is_own else self.spec.num_experts
        first, step, height = 0 if is_own else number * rows, 1, rows
        if half is not None:
            height = rows // 2
            step = 2 if names.are_transposed else 1
            first += half if names.are_transposed else half * height
        stacked = (count, rows, *columns)
        turned = bool(names.are_transposed and columns)
        whole = (count, *columns, rows) if turned else stacked
        return Part(
            f"{self.prefix}{name.format(number)}",
            (height, *columns),
            first_row=first,
            whole=None if is_own and half is None else whole[1:] if is_own else whole,
            step=step,
            is_turned=turned,
        )
