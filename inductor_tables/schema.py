"""What a table holds, as frozen records, and the checks every value passes on its way in.

A value of an entry ends up in the Python source that Inductor generates
(``torch/_inductor/select_algorithm.py``), so names and values are held to a whitelist
of shapes here, at the edge, whatever they came from.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

ParamValue = int | bool | str | None
"""The types a parameter may have; which strings, :func:`check_param` says."""

MAX_ENTRIES_PER_KEY: Final = 4096
MAX_PARAMS: Final = 64
MAX_COUNT: Final = 2**53
"""Largest count, and largest time in ns."""

_PARAM_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_PARAM_TEXT = re.compile(
    r"(?:tl|torch)\.(?:bool|(?:u?int|b?float|complex)[0-9][a-z0-9_]{0,15})", re.ASCII
)
_TEMPLATE_ID = re.compile(r"(?:[a-z][a-z0-9_]{0,31}::_?)?[A-Za-z][A-Za-z0-9_.]{0,95}", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_TEXT: Final = 256

NOT_PARAMS: Final = frozenset({"template_id", "template_hash"})
"""Fields of a plain entry that are no parameters of its template."""

Fail = Callable[[str, str], NoReturn]
"""Raises the caller's error for (place, problem)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Config:
    """A template with its parameters; equal ones are stored once in a table.

    Equality is by content and type: ``True`` and ``1`` are two values of a parameter.

    ``template_hash`` is the SHA-256 of the template's text in hex, None for ATen
    choices, which have none.
    """

    template_id: str
    template_hash: str | None
    params: tuple[tuple[str, ParamValue], ...]

    @cached_property
    def plain(self) -> Mapping[str, ParamValue]:
        """The host's plain form: one flat dict with ``template_id`` and, if known, the hash."""
        hashed = {} if self.template_hash is None else {"template_hash": self.template_hash}
        return MappingProxyType({"template_id": self.template_id, **dict(self.params), **hashed})

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Sort key by content: ties never depend on the order of the input."""
        typed = (f"{name}={type(value).__name__}:{value}" for name, value in self.params)
        return (self.template_id, self.template_hash or "", *typed)

    def __eq__(self, other: object) -> bool:
        return self.order == other.order if isinstance(other, Config) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.order)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where measurements come from: one dump. None: the dump does not say.

    ``carried`` is None for a recording of the table's own torch series, else how it was
    found to serve this one, one of :data:`CARRIED`.
    """

    dump_digest: str
    torch: str | None = None
    triton: str | None = None
    cuda: str | None = None
    hip: str | None = None
    driver: str | None = None
    device: str | None = None
    sm_count: int | None = None
    clocks: str | None = None
    date: str | None = None
    carried: str | None = None


CARRIED: Final = ("hash", "code")
"""``hash``: the template's text is the same; ``code``: it is not, the compiled code is."""


class Proof(NamedTuple):
    """What an entry was measured against, in the same rounds (``build_tools/tune/verdict.py``).

    All times are of the GPU, medians of the final rounds in whole nanoseconds. A tuple, since
    every look-up of a tuned key makes some, and a dataclass takes four times as long.

    Attributes:
        spread_ns: standard deviation of the entry's own rounds, robust: 1.4826 times the
            median deviation from their median.
        rounds: final rounds that were made.
        aten_ns: time of the fastest ATen choice.
        host_ns: time of the choice that the host's autotuner takes.
        previous_ns: time of the entry that the table before had.

    An incumbent is None where it was not timed; one kernel may be several of them, and the
    entry itself one.
    """

    spread_ns: int
    rounds: int
    aten_ns: int | None = None
    host_ns: int | None = None
    previous_ns: int | None = None

    @property
    def incumbents_ns(self) -> Mapping[str, int]:
        """The incumbents that were timed: ``aten``, ``host``, ``previous`` → time in ns."""
        named = {"aten": self.aten_ns, "host": self.host_ns, "previous": self.previous_ns}
        return {name: time for name, time in named.items() if time is not None}


_PROOF_FIELDS: Final = Proof._fields
_OPTIONAL_FROM: Final = len(_PROOF_FIELDS) - len(Proof._field_defaults)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One choice for one key.

    ``time_ns`` is the recorded time in whole nanoseconds. ``proof`` is None for what was
    recorded but not tuned.
    """

    config: Config
    time_ns: int | None
    source: Source
    proof: Proof | None = None

    @property
    def time_us(self) -> float | None:
        """The recorded time in µs, None where the dump had none."""
        return None if self.time_ns is None else self.time_ns / 1000

    @property
    def margin(self) -> float | None:
        """By what share of its time the entry beats the fastest incumbent; below 0: it does not.

        From the two medians, so that it may differ a little from the tuner's own margin, which
        is the median over the rounds. None without a proof, a time, or an incumbent.
        """
        known = () if self.proof is None else self.proof.incumbents_ns.values()
        fastest = min(known, default=0)
        return None if self.time_ns is None or not fastest else 1 - self.time_ns / fastest

    @property
    def measured(self) -> bool:
        """Measured on the table's own torch series, not carried over."""
        return self.source.carried is None

    @property
    def order(self) -> tuple[float, tuple[str, ...]]:
        """Sort key: fastest first, unknown times last, ties by content."""
        return (math.inf if self.time_ns is None else self.time_ns, self.config.order)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a table says of itself.

    ``arch`` is a gcnArchName, None for keys without a device. ``serves_base_arch``
    says that an AMD table also serves the same arch under other feature flags.
    ``templates`` are the (template id, hash) pairs that the entries rely on.
    ``proof_count`` says how many entries have a proof.
    """

    table_version: str
    torch_series: str
    arch: str | None
    serves_base_arch: bool
    key_count: int
    entry_count: int
    templates: tuple[tuple[str, str | None], ...]
    sources: tuple[Source, ...]
    proof_count: int = 0

    @property
    def recorded_with(self) -> Mapping[str, tuple[str, ...]]:
        """The torch, triton, CUDA and HIP versions, devices and dates of all sources."""
        names = ("torch", "triton", "cuda", "hip", "device", "date")
        return {name: _distinct(getattr(s, name) for s in self.sources) for name in names}

    @property
    def sm_counts(self) -> tuple[int, ...]:
        """The SM (NVIDIA) or CU (AMD) counts of the devices recorded on."""
        return tuple(sorted({s.sm_count for s in self.sources if s.sm_count is not None}))


def _distinct(values: Any) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value is not None}))


def plain_config(entry: Any, where: str, fail: Fail) -> Config:
    """Check one entry in the host's plain form and return its template and parameters.

    ``fail(place, problem)`` must raise; ``where`` is the entry's place in its file.
    """
    if not isinstance(entry, Mapping):
        fail(where, f"expected an entry as a map, found {type(entry).__name__}")
    if "template_id" not in entry:
        fail(where, "the entry has no template_id")
    template_id = check_template_id(entry["template_id"], f"{where}.template_id", fail)
    template_hash = check_hash(entry.get("template_hash"), f"{where}.template_hash", fail)
    params = {name: value for name, value in entry.items() if name not in NOT_PARAMS}
    return Config(
        template_id=template_id,
        template_hash=template_hash,
        params=check_params(params, where, fail),
    )


def check_params(
    params: Mapping[Any, Any], where: str, fail: Fail
) -> tuple[tuple[str, ParamValue], ...]:
    """Check all parameters of an entry and return them sorted by name."""
    if len(params) > MAX_PARAMS:
        fail(where, f"{len(params)} parameters; at most {MAX_PARAMS} are allowed")
    for name, value in params.items():
        check_param(name, value, where, fail)
    return tuple(sorted(params.items()))


def check_param(name: Any, value: Any, where: str, fail: Fail) -> None:
    """Hold a parameter to the whitelist.

    A name is an ASCII identifier of at most 64 signs and no Python keyword or field. A
    value is None, a bool, an int of at most 31 bits, or the name of a dtype with its width
    such as ``tl.float32``.
    """
    if not isinstance(name, str) or not _PARAM_NAME.fullmatch(name) or keyword.iskeyword(name):
        fail(where, f"parameter name {shown(name)} is not a plain ASCII identifier")
    if name in NOT_PARAMS:
        fail(where, f"{name!r} is a field of an entry and cannot be a parameter")
    if isinstance(value, int) and not is_param_value(value):
        fail(f"{where}.{name}", f"{shown(value)} is out of range (31 bits)")
    if not is_param_value(value):
        fail(
            f"{where}.{name}",
            f"{shown(value)} is not allowed; expected null, a bool, an int or the name of a "
            "dtype such as 'tl.float32'",
        )


def is_param_value(value: Any) -> bool:
    """Whether a parameter may have this value, as :func:`check_param` says."""
    if isinstance(value, int):  # a bool too
        return -(2**31) < value < 2**31
    return value is None or (isinstance(value, str) and bool(_PARAM_TEXT.fullmatch(value)))


def check_template_id(value: Any, where: str, fail: Fail) -> str:
    """Return a template id such as ``triton::mm`` or ``decompose_k``."""
    if not isinstance(value, str) or not _TEMPLATE_ID.fullmatch(value):
        fail(where, f"{shown(value)} is not a template id such as 'triton::mm'")
    return value


def check_hash(value: Any, where: str, fail: Fail) -> str | None:
    """Return a template hash: 64 hex digits, or None."""
    if value is not None and (not isinstance(value, str) or not _HASH.fullmatch(value)):
        fail(where, f"{shown(value)} is not a template hash of 64 hex digits")
    return value


def check_text(value: Any, where: str, fail: Fail) -> str | None:
    """Return a text of at most 256 printable signs, or None."""
    if value is not None and (
        not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable()
    ):
        fail(where, f"{shown(value)} is not a text of at most {_MAX_TEXT} printable signs")
    return value


def check_count(value: Any, where: str, fail: Fail, *, optional: bool = False) -> Any:
    """Return a whole number from 0 to 2**53, or None where that is allowed."""
    if optional and value is None:
        return None
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        fail(where, f"{shown(value)} is not a whole number from 0 to 2**53")
    return value


def check_proof(values: Any, where: str, fail: Fail) -> Proof:
    """Return the proof that has these values, a list or tuple in the order of its fields."""
    if not isinstance(values, (list, tuple)) or len(values) != len(_PROOF_FIELDS):
        fail(where, f"expected {', '.join(_PROOF_FIELDS)}, found {shown(values)}")
    for at, value in enumerate(values):  # on the way of every look-up: no call if all is well
        if value is None and at >= _OPTIONAL_FROM:
            continue
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            check_count(value, f"{where}.{_PROOF_FIELDS[at]}", fail)
    return Proof(*values)


def proof_order(proof: Proof | None) -> tuple[int, ...]:
    """Return a sort key by content; no proof comes first."""
    return () if proof is None else tuple(-1 if n is None else n for n in proof)


def check_list(value: Any, where: str, fail: Fail, limit: int = 2**32) -> Sequence[Any]:
    """Return a list of at most ``limit`` items."""
    if not isinstance(value, list):
        fail(where, f"expected a list, found {type(value).__name__}")
    if len(value) > limit:
        fail(where, f"{len(value)} items; at most {limit} are allowed")
    return value


def shown(value: Any) -> str:
    """Return a value for a message, short whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of too many digits, lists in lists in lists
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= 120 else f"{text[:120]}..."
