"""Replace attributes for a while and put every one of them back."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

_MISSING = object()


def _restore(owner: Any, name: str, value: Any) -> None:
    if value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


class Patches(contextlib.ExitStack):
    """An exit stack that also replaces attributes; closing it undoes them in reverse order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def replace(self, owner: Any, name: str, value: Any, *, if_present: bool = False) -> None:
        """Set ``owner.name`` until the stack closes.

        Args:
            owner: a module, class or object.
            name: the attribute.
            value: what to set; a staticmethod, classmethod or property for a class.
            if_present: do nothing where the owner has no such attribute; for names that only
                some supported torch versions have.

        Raises:
            AttributeError: the owner has no such attribute and ``if_present`` is false.
        """
        if not hasattr(owner, name):
            if if_present:
                return
            raise AttributeError(f"{_name_of(owner)} has no attribute {name!r} to simulate")
        # vars() keeps staticmethod and property objects whole; getattr would unwrap them.
        self.callback(_restore, owner, name, vars(owner).get(name, _MISSING))
        self.names.append(f"{_name_of(owner)}.{name}")
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, wrapper: Any, *, if_present: bool = False) -> None:
        """Replace ``owner.name`` by ``wrapper(original, *args, **kwargs)``."""
        original = getattr(owner, name, None)

        @functools.wraps(original or wrapper)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        self.replace(owner, name, wrapped, if_present=if_present)


def _name_of(owner: Any) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return str(getattr(owner, "__name__", type(owner).__name__))
