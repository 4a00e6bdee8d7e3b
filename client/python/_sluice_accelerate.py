# SPDX-License-Identifier: BSD-2-Clause
"""Starts sluice.accelerate: replaces functions of some modules, now or when they are imported.

It is not part of the package `sluice`, because sluice-accelerate.pth imports it in every Python process that has
SLUICE_ACCELERATE set, and most of these load no model: the package is imported when one of the modules below is.
"""
from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as everything else here
    from typing import Any

# The module, and the one whose patch(module) replaces its functions.
_PATCHES = {
    "safetensors": "sluice.integrations.patch_safetensors",
    "torch.serialization": "sluice.integrations.patch_torch",
    "transformers.core_model_loading": "sluice.integrations.patch_transformers",
    "diffusers.models.model_loading_utils": "sluice.integrations.patch_diffusers",
    "fastsafetensors.copier": "sluice.integrations.fastsafetensors",
}


def _patch(module: Any) -> None:
    try:
        importlib.import_module(_PATCHES[module.__name__]).patch(module)
    except Exception as error:  # the program works without it
        import logging
        logging.getLogger("sluice").warning("%s is not accelerated: %s: %s", module.__name__, type(error).__name__, error)


class _Loader:
    """Does what another loader does, and patches the module then."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        # As if this class had not been there: some programs look at the loader.
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _patch(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder:
    """Lets the other finders find a module of _PATCHES."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _PATCHES or name in self._asked:
            return None
        self._asked.add(name)  # another hook like this one would ask us again
        try:
            return self._ask(name, path, target)
        finally:
            self._asked.discard(name)

    def _ask(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                loader: Any = spec.loader
                if loader is not None:
                    loader = _Loader(loader)
                    spec.loader = loader
                return spec
        return None


def install() -> None:
    """The second call does nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in _PATCHES:
        if name in sys.modules:
            _patch(sys.modules[name])
