"""The model that is tried, and engines over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagoda.cache import num_blocks_for
from pagoda.cache.formats import FLOAT_DTYPES, INT8_LATENTS, canonical
from pagoda.cache.layer import CachedLayer
from pagoda.cache.retention import parse_retention
from pagoda.cache.spec import CacheSpec
from pagoda.engine.build import Model, assemble
from pagoda.engine.core import Engine
from pagoda.engine.devices.backend import Running
from pagoda.engine.devices.cache_spec import asked_cache_spec
from pagoda.engine.devices.find import find_backend
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.lab.method import FORM_FIELD, FULL, Method, named_options, options_with
from pagoda.sizing.device_policy import DevicePolicy
from pagoda.sizing.lossy_form import require_lossy_form
from pagoda.tiers.packing import Packing


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in memory, and the options that all engines over it have in common."""

    model: Model
    options: EngineOptions

    @property
    def numbers_per_token(self) -> int:
        """Numbers of K and V that all layers have of one token."""
        plain = self.model.spec.cache_spec(self.options.block_size, "float32")
        num_bytes = sum(layer.block_bytes(plain.block_size) for layer in plain.layers)
        return num_bytes // plain.block_size // 4

    def open(
        self, method: Method, *, longest: int, num_tokens: int, **options: Any
    ) -> tuple[Engine, Running]:
        """An engine for requests of up to `longest` tokens, whose pool holds `num_tokens`.

        `options` are more of `EngineOptions`. Raises `InvalidOptionError` where the model or its
        device cannot keep a cache so.
        """
        asked = replace(options_with(self.options, method), **options)
        num_blocks = self._num_blocks(asked, longest, num_tokens)
        asked = replace(asked, num_gpu_blocks_override=num_blocks)
        return assemble(replace(self.model, max_model_len=longest), asked)

    def packings(self, methods: Sequence[Method]) -> dict[Method, Packing]:
        """Of those methods that have a lossy form of tiers, what makes it of the full cache's
        blocks. All of them share what is calibrated.

        Raises `InvalidOptionError` where the model or its device has no such form, and where it
        cannot be calibrated.
        """
        forms = {each: each.tier_form for each in methods if each.tier_form is not None}
        if not forms:
            return {}
        names, cache = list(forms.values()), self._full_cache
        _require_forms(names, self.model.backend.policy, cache.layers)
        made = self.model.loaded.packings(FORM_FIELD, names, cache, self.options)
        return dict(zip(forms, made, strict=True))

    @property
    def _full_cache(self) -> CacheSpec:
        return self._cache_spec(options_with(self.options, FULL))

    def _cache_spec(self, options: EngineOptions) -> CacheSpec:
        model = self.model
        return asked_cache_spec(model.spec, options, model.backend.policy, model.dtype)

    def _num_blocks(self, options: EngineOptions, longest: int, num_tokens: int) -> int:
        """Blocks for so many tokens of requests of up to `longest`; no more than windows keep, and
        no fewer than one request takes."""
        spec, requests = self._cache_spec(options), num_tokens // longest
        whole = num_blocks_for(num_tokens, spec.block_size)
        kept = [group.num_blocks(longest, spec.under_way_tokens) for group in spec.groups]
        return sum(max(each, min(whole, requests * (each + 1))) for each in kept)

    def methods(
        self,
        names: Sequence[str] = (),
        retentions: Sequence[str] = (),
        forms: Sequence[str] = (),
    ) -> tuple[Method, ...]:
        """The full cache, it in other plain dtypes, and those named, or all that can be done here.
        Each is there once, however often and by whatever names it is asked for.

        `retentions`, and `forms` of tiers: tried with the dtype of the activations; without
        `names`, no other format is. Raises `InvalidOptionError` for a name that the model or the
        device cannot do.
        """
        windows = dict.fromkeys(map(parse_retention, retentions))
        kept = tuple(Method(retention=str(each)) for each in windows if not each.is_full)
        for each in kept:
            self._try(each)
        if forms:
            _require_forms(forms, self.model.backend.policy, self._full_cache.layers)
        kept += tuple(Method(tier_form=name) for name in dict.fromkeys(forms))
        if (retentions or forms) and not names:
            return (FULL, *kept)
        return (*self._stored(names), *kept)

    @property
    def _formats(self) -> tuple[str, ...]:
        """What the device stores; a format of latents is none where no layer keeps any."""
        formats = self.model.backend.policy.cache_formats(self.model.dtype)
        plain = self.model.spec.cache_spec(self.options.block_size, "float32")
        if any(layer.vectors is None for layer in plain.layers):
            return formats
        return tuple(name for name in formats if name != INT8_LATENTS)

    def _stored(self, names: Sequence[str]) -> tuple[Method, ...]:
        formats = self._formats
        plain = [name for name in formats if name in FLOAT_DTYPES]
        others = {canonical(name): Method(name) for name in (*plain, *(names or formats))}
        for same in (FULL.kv_cache_dtype, self.model.dtype):
            others.pop(same, None)
        if names:
            for each in others.values():
                self._try(each)
            return (FULL, *others.values())
        return (FULL, *(each for each in others.values() if self._refusal(each) is None))

    def left_out(self) -> list[str]:
        """Why formats that the device stores are not among `methods`, a line each."""
        refusals = (self._refusal(Method(name)) for name in self._formats)
        return [str(refusal) for refusal in refusals if refusal is not None]

    def _refusal(self, method: Method) -> InvalidOptionError | None:
        try:
            self._try(method)
        except InvalidOptionError as error:
            return error
        return None

    def _try(self, method: Method) -> None:
        """Raises `InvalidOptionError` where the model cannot keep a cache so."""
        options, size = options_with(self.options, method), self.options.block_size
        num_blocks = self._num_blocks(options, size, size)
        self.model.loaded.size(replace(options, num_gpu_blocks_override=num_blocks), size)


def require_known(
    options: EngineOptions,
    names: Sequence[str],
    retentions: Sequence[str] = (),
    forms: Sequence[str] = (),
) -> None:
    """Raises `InvalidOptionError` for a name that the device does not know, and lists those.

    To be asked before a model is loaded, which takes longer.
    """
    asked = named_options(options, names, retentions, forms)
    backend = find_backend(options)
    _require_forms(forms, backend.policy)
    for each in asked:
        backend.prepare(each)


def _require_forms(
    forms: Sequence[str], policy: DevicePolicy, layers: Sequence[CachedLayer] = ()
) -> None:
    for name in forms:
        require_lossy_form(FORM_FIELD, name, policy, layers)
