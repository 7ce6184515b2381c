"""Run a callback once a module has been imported, without importing it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], object]


class _PostImportFinder(MetaPathFinder):
    """Finds what the other finders find, and calls back when it has been executed."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callback]] = {}
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def add(self, name: str, callback: Callback) -> None:
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            callback(module)
            return
        with self._lock:
            self._waiting.setdefault(name, []).append(callback)
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)

    def discard(self, name: str, callback: Callback) -> None:
        with self._lock:
            self._waiting[name] = [c for c in self._waiting.get(name, []) if c != callback]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._waiting.get(fullname):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._call_back_after(spec)
                return spec
        return None

    def _call_back_after(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        assert loader is not None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            with self._lock:
                callbacks = self._waiting.pop(spec.name, [])
            for callback in callbacks:
                callback(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]


_FINDER = _PostImportFinder()
if hasattr(os, "register_at_fork"):  # another thread may hold the lock at the fork
    os.register_at_fork(after_in_child=_FINDER.renew_lock)


def when_imported(name: str, callback: Callback) -> None:
    """Call ``callback(module)`` now if the module is there, else right after its import."""
    _FINDER.add(name, callback)


def forget_when_imported(name: str, callback: Callback) -> None:
    """Take back a callback that has not run yet."""
    _FINDER.discard(name, callback)
