"""Coverage as one HTML page, for people who look for what to tune next.

Its script only sorts, filters and unfolds what the page holds. The page loads nothing: its policy
allows its own style and script by their digests and nothing else, and whatever a key or a module
path says stays text.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from inductor_tables import __version__
from inductor_tables.analysis.plot import intensity, plot_of, tflops
from inductor_tables.analysis.records import Coverage, Gemm
from inductor_tables.parameters import kernel_text

if TYPE_CHECKING:
    import jinja2

OUTCOMES: Final = ("hit", "miss", "dropped")

_GAPS: Final = 3
"""How many of the largest uncovered products the summary speaks of."""

_FACETS: Final[Mapping[str, Callable[[Gemm], tuple[str, ...]]]] = {
    "outcome": lambda gemm: (gemm.outcome,),
    "op": lambda gemm: (gemm.op_name,),
    "dtype": lambda gemm: (gemm.dtype,),
    "phase": lambda gemm: (gemm.phase,),
    "target": lambda gemm: gemm.targets,
}


@dataclass(frozen=True, kw_only=True)
class Facet:
    """What the table can be filtered by: a property and the values that the products have."""

    name: str
    values: tuple[str, ...]

    def of(self, gemm: Gemm) -> str:
        """Return the numbers of a product's values, with spaces between."""
        return " ".join(str(self.values.index(value)) for value in _FACETS[self.name](gemm))


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Time of some products in µs by outcome, and the filter that shows them."""

    name: str
    facet: str
    value: int
    us: Mapping[str, float]

    @property
    def total(self) -> float:
        """Time of all in µs."""
        return sum(self.us.values())

    @property
    def covered(self) -> float:
        """Share of the time that hits, from 0 to 1."""
        return _share(self.us["hit"], self.total)

    def parts(self) -> Iterator[tuple[str, float, float]]:
        """Yield outcome, start and width in percent, of those that take time."""
        start = 0.0
        for outcome in OUTCOMES:
            width = 100 * _share(self.us[outcome], self.total)
            if width:
                yield outcome, start, width
            start += width


def page(coverage: Coverage) -> str:
    """Return a coverage as an HTML page that needs no other file and no network."""
    environment = _environment()
    facets = [facet for name in _FACETS if (facet := _facet(coverage, name)).values]
    targets_first = sorted(facets, key=lambda facet: facet.name != "target")
    gaps = [(i, gemm) for i, gemm in enumerate(coverage.gemms) if gemm.outcome != "hit"][:_GAPS]
    recorded = [gemm for gemm in coverage.gemms if gemm.time_us is not None]
    style, script = _asset(environment, "page.css"), _asset(environment, "page.js")
    return environment.get_template("page.html.jinja").render(
        coverage=coverage,
        version=__version__,
        style=style,
        script=script,
        policy=_policy(style, script),
        facets=facets,
        outcomes=OUTCOMES,
        overall=_bar("", "", 0, ((gemm, 1.0) for gemm in coverage.gemms)),
        bars=[_bars(coverage, facet) for facet in targets_first if _is_split(facet)],
        plot=plot_of(coverage),
        most_us=max((gemm.estimated_us * gemm.count for gemm in coverage.gemms), default=0.0),
        gaps=gaps,
        gaps_us=_total_us(gemm for _, gemm in gaps),
        recorded_us=_total_us(recorded),
        batched=any(gemm.batch != 1 for gemm in coverage.gemms),
        shared=any(len(gemm.targets) > 1 for gemm in coverage.gemms),
        phased=len({gemm.phase for gemm in coverage.gemms}) > 1,
    )


def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("inductor_tables.analysis", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": lambda value: _scaled(value, "B"),
        "change": lambda value: f"{100 * value:+.1f} %",
        "duration": _duration,
        "flops": lambda value: _scaled(value, "FLOP"),
        "intensity": intensity,
        "kernel": kernel_text,
        "number": _number,
        "params": _params,
        "percent": _percent,
        "share": _share,
        "split_path": _split_path,
        "tflops": tflops,
    }
    return environment


def _asset(environment: jinja2.Environment, name: str) -> Any:
    """Return a file of the templates that is no template, as it goes between its tags."""
    import markupsafe

    loader = environment.loader
    assert loader is not None
    return markupsafe.Markup(loader.get_source(environment, name)[0])  # noqa: S704 - our own


def _policy(style: str, script: str) -> str:
    """Return the content security policy: the two texts run, nothing is ever loaded."""
    allowed = {name: _digest(text) for name, text in (("style", style), ("script", script))}
    return "; ".join(
        [
            "default-src 'none'",
            *(f"{name}-src 'sha256-{digest}'" for name, digest in allowed.items()),
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        ]
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- what is shown ----------------------------------------------------------------------


def _facet(coverage: Coverage, name: str) -> Facet:
    found = {value for gemm in coverage.gemms for value in _FACETS[name](gemm)}
    first = {"outcome": OUTCOMES, "target": coverage.targets}.get(name, ())
    by_time = (value for gemm in coverage.gemms for value in _FACETS[name](gemm))
    ordered = dict.fromkeys([*first, *by_time])
    return Facet(name=name, values=tuple(value for value in ordered if value in found))


def _is_split(facet: Facet) -> bool:
    return facet.name != "outcome" and len(facet.values) > 1


def _bars(coverage: Coverage, facet: Facet) -> tuple[str, list[Bar]]:
    """Return a facet's name and a bar for each value; a product of several counts in parts."""
    of = _FACETS[facet.name]
    bars = []
    for number, value in enumerate(facet.values):
        parts = ((g, of(g).count(value) / len(of(g))) for g in coverage.gemms if value in of(g))
        bars.append(_bar(value, facet.name, number, parts))
    return facet.name, bars


def _bar(name: str, facet: str, value: int, parts: Iterable[tuple[Gemm, float]]) -> Bar:
    us = dict.fromkeys(OUTCOMES, 0.0)
    for gemm, part in parts:
        us[gemm.outcome] += gemm.estimated_us * gemm.count * part
    return Bar(name=name, facet=facet, value=value, us=us)


def _total_us(gemms: Iterable[Gemm]) -> float:
    return sum(gemm.estimated_us * gemm.count for gemm in gemms)


# --- how it is written ------------------------------------------------------------------


def _visible(value: Any) -> Any:
    """Write what has no glyph (controls, marks of direction, halves of pairs) as an escape."""
    if type(value) is not str or value.isprintable():
        return value
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in value
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percent(share: float) -> str:
    """Return a share as text; only nothing is 0 % and only all is 100 %."""
    if share in {0, 1}:
        return f"{100 * share:g} %"
    return "< 0.1 %" if share < 0.0005 else f"{min(100 * share, 99.9):.1f} %"


def _number(value: float) -> str:
    """Return a number with as many digits as one reads: 0.123, 12.3, 12,345."""
    for least, digits in ((100, 0), (1, 1), (0, 3)):
        if abs(value) >= least:
            return f"{value:,.{digits}f}"
    return str(value)


def _duration(us: float) -> str:
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{_number(us / factor)} {unit}"
    return f"{_number(us)} µs"


def _scaled(value: float, unit: str) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{_number(value / factor)} {prefix}{unit}"
    return f"{value:g} {unit}"


def _params(params: Mapping[str, Any]) -> list[str]:
    return [f"{name}={params[name]}" for name in sorted(params)]


def _split_path(path: str) -> tuple[str, str]:
    """Split a path before its last two parts, which say most and are cut off last."""
    found = re.fullmatch(r"(.*[./])?([^./]*[./][^./]*)", path, re.DOTALL)
    return (found[1] or "", found[2]) if found else ("", path)
