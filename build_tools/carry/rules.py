"""Which rows of a dump serve another torch, and why the others do not.

A Triton entry serves where its template has the same text, or where what is compiled for it is
the same. An ATen choice is a function's name. Nothing else is known well enough.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from build_tools.carry.fit import misfit
from build_tools.hashes import TemplateHashes
from inductor_tables.dumps import Dump, Row
from inductor_tables.errors import BuildError
from inductor_tables.keys import ParsedKey, parse_key, problem_of
from inductor_tables.schema import Config
from inductor_tables.versions import TorchSeries, series_order

BY_HASH: Final = "hash"
BY_CODE: Final = "code"

_ATEN: Final = "aten::"
_SPLIT_ADDMM: Final = TorchSeries("2.12")
"""Since when ATen's addmm is asked for under the key with the bias as the user gave it."""

_BEHIND: Final = "slower than a choice of its problem that does not carry"
_NOT_COMPARED: Final = "the text of {} differs, and the code was not compared"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An entry whose template's text differs, as both torches have it.

    Attributes:
        key: the lookup key.
        device: gcnArchName that the key or the dump names, None if neither does.
        recorded: the entry with the hash that it was recorded with; ``config``: with the target's.
        source: the series that it was recorded on; ``target``: that it shall serve.
    """

    key: str
    device: str | None
    recorded: Config
    config: Config
    source: TorchSeries
    target: TorchSeries


Compared = Mapping[Pair, str | None]
"""What was found for pairs: None if the compiled code is the same, else why it does not carry."""


@dataclass(frozen=True, kw_only=True)
class Carry:
    """What of a dump serves a series.

    Attributes:
        rows: the rows that do, by how that was found, with the hashes of the series.
        left: the rows that do not, as the dump has them, with the reason.
    """

    dump: Dump
    source: TorchSeries
    target: TorchSeries
    rows: Mapping[str, Sequence[Row]]
    left: Sequence[tuple[Row, str]]

    @property
    def reasons(self) -> Counter[str]:
        """How many rows are left, by reason."""
        return Counter(reason for _, reason in self.left)


@dataclass(frozen=True)
class _Verdict:
    """How a row serves, or why not; ``missed``: the target's own tuning could still find it."""

    by: str | None
    reason: str = ""
    missed: bool = True


@dataclass(frozen=True)
class _Held:
    """A row with the dump that holds it."""

    dump: Dump
    row: Row
    key: ParsedKey

    @property
    def device(self) -> str | None:
        return self.key.device or self.dump.arch

    @property
    def hip(self) -> bool:
        return (self.device or "").startswith("gfx") or self.dump.source.hip is not None


_Judge = Callable[[_Held], _Verdict]


class Plan:
    """All dumps of one torch on their way to another.

    Args:
        dumps: recordings, each under its own name.
        source: the series that they were recorded on.
        hashes: the templates of the series that they shall serve.

    Raises:
        BuildError: a dump was carried over itself.
    """

    def __init__(self, dumps: Sequence[Dump], source: TorchSeries, hashes: TemplateHashes) -> None:
        for dump in dumps:
            if dump.carried is not None:
                raise BuildError(
                    f"{dump.resource}: was carried over from torch {dump.source.torch} already; "
                    "carry the recording that it was made of"
                )
        self._dumps, self._source, self._hashes = dumps, source, hashes

    @cached_property
    def pairs(self) -> list[Pair]:
        """What has to be compiled on both torches, to know whether it serves."""
        hopeful = self._settled(lambda held: self._by_text(held) or _Verdict(BY_CODE))
        return [self._pair(held) for held, verdict in hopeful if verdict.by == BY_CODE]

    def fastest_serves(self, compared: Compared) -> dict[ParsedKey, bool]:
        """Return for each problem whether its fastest choice serves."""
        return {
            problem: self._judge(held[0], compared).by is not None
            for problem, held in self._by_problem.items()
        }

    def carry(self, compared: Compared) -> list[Carry]:
        """Return what of each dump serves; pairs that were not compared do not."""
        rows: dict[str, dict[str, list[Row]]] = {d.resource: defaultdict(list) for d in self._dumps}
        left: dict[str, list[tuple[Row, str]]] = {d.resource: [] for d in self._dumps}
        for held, verdict in self._settled(lambda held: self._judge(held, compared)):
            row, name = held.row, held.dump.resource
            if verdict.by is None:
                left[name].append((row, verdict.reason))
                continue
            if verdict.by == BY_CODE:
                row = replace(row, config=self._pair(held).config)
            rows[name][verdict.by].append(row)
        return [
            Carry(
                dump=dump,
                source=self._source,
                target=self._hashes.series,
                rows=rows[dump.resource],
                left=left[dump.resource],
            )
            for dump in self._dumps
        ]

    def _settled(self, judge: _Judge) -> Iterator[tuple[_Held, _Verdict]]:
        """Yield each row with its verdict, the fastest of each problem first.

        What comes behind a choice that does not carry is slower than what the host would find,
        unless it was proved against what the host has. A choice that the target cannot run, and
        one that users have to switch on, stand in nobody's way.
        """
        for problem in self._by_problem.values():
            behind = False
            for held in problem:
                verdict = judge(held)
                if behind and not _proved(held.row):
                    verdict = _Verdict(None, _BEHIND)
                elif verdict.by is None and verdict.missed:
                    behind = behind or not needs_setting(held.row.config)
                yield held, verdict

    @cached_property
    def _by_problem(self) -> Mapping[ParsedKey, Sequence[_Held]]:
        found: dict[ParsedKey, list[_Held]] = defaultdict(list)
        rows = [(dump, row) for dump in self._dumps for row in dump.rows]
        for dump, row in sorted(rows, key=lambda one: (one[1].order, one[0].resource)):
            key = parse_key(row.key)
            found[problem_of(key)].append(_Held(dump, row, key))
        return found

    def _judge(self, held: _Held, compared: Compared) -> _Verdict:
        found = self._by_text(held)
        if found is not None:
            return found
        unknown = _NOT_COMPARED.format(held.row.config.template_id)
        reason = compared.get(self._pair(held), unknown)
        return _Verdict(BY_CODE) if reason is None else _Verdict(None, reason)

    def _by_text(self, held: _Held) -> _Verdict | None:
        """Return what the templates' texts tell, None if they differ."""
        refused = self._refused(held)
        if refused is not None:
            return refused
        config = held.row.config
        same = self._hashes.problem(config.template_id, config.template_hash, rocm=held.hip) is None
        return _Verdict(BY_HASH) if same else None

    def _refused(self, held: _Held) -> _Verdict | None:
        """Return why a row does not carry, whatever the texts; None if they decide."""
        config, templates = held.row.config, self._hashes.templates
        template_id, target = config.template_id, self._hashes.series
        if template_id not in templates:
            return _Verdict(None, f"torch {target} has no {template_id}")
        if template_id.startswith(_ATEN):
            moved = self._moved(held.key)
            return _Verdict(None, f"torch {target} asks for {moved}") if moved else None
        if templates[template_id] is None:
            return _Verdict(None, f"{template_id} has no text that could be compared")
        if config.template_hash is None:
            return _Verdict(None, f"{template_id} was recorded without a hash")
        unfit = misfit(held.key, config, held.device, target)
        return None if unfit is None else _Verdict(None, unfit, missed=False)

    def _moved(self, key: ParsedKey) -> str:
        """Say which ATen choices of a key are asked for under another one there."""
        since = series_order(_SPLIT_ADDMM)
        crosses = (series_order(self._source) < since) != (
            series_order(self._hashes.series) < since
        )
        if key.op_name != "addmm" or not crosses or len(key.inputs) != 3:
            return ""
        bias, mat1, mat2 = key.inputs
        whole = bias.size == (*mat1.size[:1], *mat2.size[1:]) and 0 not in bias.stride
        return "" if whole else "ATen's addmm of a broadcast bias under another key"

    def _pair(self, held: _Held) -> Pair:
        config = held.row.config
        expected = self._hashes.templates[config.template_id]
        return Pair(
            key=held.row.key,
            device=held.device,
            recorded=config,
            config=replace(config, template_hash=expected),
            source=self._source,
            target=self._hashes.series,
        )


def needs_setting(config: Config) -> bool:
    """Whether torch offers a template only where the user switched it on.

    Persistent TMA kernels: ``torch._inductor.config.triton.enable_persistent_tma_matmul``.
    """
    return "persistent" in config.template_id or "tma" in config.template_id


def _proved(row: Row) -> bool:
    """Whether a row was at least as fast as what it was measured against."""
    known = () if row.proof is None else row.proof.incumbents_ns.values()
    return row.time_ns is not None and bool(known) and row.time_ns <= min(known)
