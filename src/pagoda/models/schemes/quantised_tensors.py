"""The quantised weights of a model directory, by the headers of its files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pagoda.models.schemes.quantised_matrix import QuantisedMatrix
from pagoda.models.schemes.scheme import Scheme
from pagoda.models.schemes.stored_module import StoredModule
from pagoda.models.stored_tensors import DTYPES, StoredTensor


@dataclass(frozen=True, slots=True)
class QuantisedTensors:
    """The tensors of a directory, sorted."""

    matrices: Mapping[str, QuantisedMatrix]
    """By the names that plain ones would have."""
    plain: Mapping[str, StoredTensor]
    left_aside: tuple[str, ...]
    """Names of tensors of activations and caches, which are not quantised here."""
    empty_biases: frozenset[str]
    """Biases of zeros beside matrices: some writers add them to models that have none."""

    @classmethod
    def of(cls, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> QuantisedTensors:
        """Raises `ModelError` for the tensors of a layer that do not go together."""
        left_aside = {name for name in tensors if _ends(name, scheme.left_aside, ".") is not None}
        needed = {name: each for name, each in tensors.items() if name not in left_aside}
        modules = dict(_modules(scheme, needed))
        matrices = {
            f"{name}{scheme.weight}": scheme.matrix(module) for name, module in modules.items()
        }
        taken = {module.tensor(kind) for module in modules.values() for kind in module.tensors}
        plain = {name: each for name, each in tensors.items() if name not in taken | left_aside}
        biases = {name: plain[f"{name}.bias"] for name in modules if f"{name}.bias" in plain}
        return cls(
            matrices=matrices,
            plain=plain,
            left_aside=tuple(sorted(left_aside)),
            empty_biases=frozenset(
                f"{name}.bias" for name, bias in biases.items() if _is_zero(bias)
            ),
        )


def quantised_types(scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """The type of each quantised weight, by the name that a plain one would have.

    Raises `ModelError` for the tensors of a layer that do not go together.
    """
    matrices = QuantisedTensors.of(scheme, tensors).matrices
    return {name: matrix.type for name, matrix in matrices.items()}


def _modules(
    scheme: Scheme, tensors: Mapping[str, StoredTensor]
) -> Iterator[tuple[str, StoredModule]]:
    """The layers that are quantised."""
    found: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for name, tensor in sorted(tensors.items()):
        kind = _ends(name, scheme.kinds, scheme.separator)
        if kind is not None:
            found[name.removesuffix(scheme.separator + kind)][kind] = tensor
    for name, kinds in found.items():
        if kinds.keys() != {"weight"} or kinds["weight"].dtype not in DTYPES:
            yield name, StoredModule(name, kinds, scheme.separator)


def _ends(name: str, kinds: tuple[str, ...], separator: str) -> str | None:
    """The kind that a tensor's name ends with."""
    return next((kind for kind in kinds if name.endswith(separator + kind)), None)


def _is_zero(tensor: StoredTensor) -> bool:
    return not np.frombuffer(tensor.data, np.uint8, tensor.size_bytes, tensor.start).any()
