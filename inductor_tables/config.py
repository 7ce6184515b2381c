"""Settings of the runtime and the recorder, as attributes of this module.

Each has an environment variable, ``INDUCTOR_TABLES_`` and its name in capitals, that is
read at import. ``config.patch`` changes some for a while, as torch's configs do::

    with config.patch(recorder_topk=3): ...
    @config.patch("active", False)
    def f(): ...

An unknown name or a value of the wrong type is refused. Settings are the process's, for
all of its threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

active: bool = True
"""Whether the handler looks anything up. Off: stock behaviour, at no cost."""

check_src_hash: bool = True
"""Whether an entry whose template hash is not the installed torch's is dropped."""

recording_active: bool = False
"""Whether autotuning results are recorded."""

recorder_emit: bool = True
"""Whether each recorded entry is logged (debug level, ``inductor_tables.recorder``)."""

recorder_record_dir: str | None = None
"""Directory that dumps are written to; None writes none."""

recorder_topk: int | None = None
"""How many of the fastest choices are recorded. None or negative: all. 0: none."""

record_template_hash: bool = True
"""Whether recorded entries carry the hash of their template."""

record_with_device_key: bool = True
"""Whether recorded keys carry the device's gcnArchName."""

record_misses: bool = False
"""Whether keys that no table answers are noted, as problems to tune (``recorder_record_dir``)."""

table_paths: tuple[str, ...] = ()
"""Tables that ``enable`` is given where the call names none. One path a line in the environment."""

table_version: str | None = None
"""The version specifier, such as ``~=2026.11``, where the call of ``enable`` has none."""

trusted_paths: tuple[str, ...] = ()
"""Files and directories that ``enable`` reads tables from although others may write there.

A directory stands for all below it. Symlinks are resolved. In the environment variable each
line is one path, since a path may hold a colon.
"""

ENV_PREFIX: Final = "INDUCTOR_TABLES_"


@dataclass(frozen=True)
class _Setting:
    default: bool | int | str | tuple[str, ...] | None
    types: tuple[type, ...]
    expected: str


_SETTINGS: Final[Mapping[str, _Setting]] = {
    "active": _Setting(True, (bool,), "a bool"),
    "check_src_hash": _Setting(True, (bool,), "a bool"),
    "recording_active": _Setting(False, (bool,), "a bool"),
    "recorder_emit": _Setting(True, (bool,), "a bool"),
    "recorder_record_dir": _Setting(None, (str, type(None)), "a path as str, or None"),
    "recorder_topk": _Setting(None, (int, type(None)), "an int, or None"),
    "record_template_hash": _Setting(True, (bool,), "a bool"),
    "record_with_device_key": _Setting(True, (bool,), "a bool"),
    "record_misses": _Setting(False, (bool,), "a bool"),
    "table_paths": _Setting((), (tuple,), "a tuple of paths as str"),
    "table_version": _Setting(None, (str, type(None)), "a version specifier as str, or None"),
    "trusted_paths": _Setting((), (tuple,), "a tuple of paths as str"),
}

NAMES: Final = tuple(_SETTINGS)
"""The names of all settings."""

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


@contextlib.contextmanager
def patch(
    arg: str | Mapping[str, Any] | None = None, value: Any = None, **changes: Any
) -> Iterator[None]:
    """Change settings for the time of a ``with`` block or a decorated function.

    Takes keywords, a mapping, or one name and its value.

    Raises:
        AttributeError: a name is no setting; nothing is changed.
        TypeError: a value has the wrong type; nothing is changed.
    """
    if isinstance(arg, str):
        changes = {arg: value, **changes}
    elif arg is not None:
        changes = {**arg, **changes}
    for name, new in changes.items():
        _check(name, new)
    module = sys.modules[__name__]
    before = {name: getattr(module, name) for name in changes}
    try:
        for name, new in changes.items():
            setattr(module, name, new)
        yield
    finally:
        for name, old in before.items():
            setattr(module, name, old)


def _check(name: str, value: Any) -> None:
    setting = _SETTINGS.get(name)
    if setting is None:
        raise AttributeError(
            f"inductor_tables.config has no setting {name!r}; there are {', '.join(_SETTINGS)}"
        )
    wrong_bool = isinstance(value, bool) and bool not in setting.types
    wrong_item = isinstance(value, tuple) and not all(isinstance(v, str) and v for v in value)
    if wrong_bool or wrong_item or not isinstance(value, setting.types):
        raise TypeError(
            f"inductor_tables.config.{name} must be {setting.expected}, found {value!r}"
        )


def flag(variable: str, text: str) -> bool:
    """Return whether an environment variable's text switches it on.

    Raises:
        ValueError: it is neither 1, true, yes, on nor 0, false, no, off.
    """
    if text.strip().lower() not in _TRUE | _FALSE:
        raise ValueError(f"{variable}={text!r}: expected 1 or 0")
    return text.strip().lower() in _TRUE


def _from_environment(name: str, setting: _Setting) -> Any:
    variable = ENV_PREFIX + name.upper()
    given = os.environ.get(variable, "")
    text = given.strip()
    if not text:
        return setting.default
    if tuple in setting.types:
        return tuple(line for line in given.splitlines() if line.strip())
    if bool in setting.types:
        return flag(variable, text)
    if int in setting.types:
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{variable}={text!r}: expected an int") from None
    return text


class _ConfigModule(ModuleType):
    """Refuses unknown names and wrong types on assignment."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("__"):
            _check(name, value)
        super().__setattr__(name, value)


def _warn_of_unknown_variables() -> None:
    known = [ENV_PREFIX + name.upper() for name in _SETTINGS]
    unknown = sorted(v for v in os.environ if v.startswith(ENV_PREFIX) and v not in known)
    if unknown:
        logging.getLogger("inductor_tables").warning(
            "unknown environment variables: %s; known are INDUCTOR_TABLES, %s",
            ", ".join(unknown),
            ", ".join(known),
        )


for _name, _setting in _SETTINGS.items():
    globals()[_name] = _from_environment(_name, _setting)
_warn_of_unknown_variables()
sys.modules[__name__].__class__ = _ConfigModule
