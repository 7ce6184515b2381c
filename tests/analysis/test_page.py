"""The coverage page as text: what is on it, what never becomes markup, what it may load."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import coverage_samples as samples
import pytest

from inductor_tables.analysis import page as page_module
from inductor_tables.analysis.page import page
from inductor_tables.analysis.plot import plot_of
from inductor_tables.analysis.records import Coverage
from inductor_tables.parameters import kernel_text

VOID: Final = {"meta", "br", "input"}
EMPTY_IN_SVG: Final = {"rect", "line", "circle", "path"}

SAMPLES: Final[dict[str, Callable[[], Coverage]]] = {
    "llama": samples.llama,
    "hostile": samples.hostile,
    "empty": samples.coverage,
    "one": lambda: samples.coverage(samples.gemm(m=16, n=4096, k=4096)),
}


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str | None]
    content: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text inside, with single spaces."""
        return " ".join(self.raw.split())

    @property
    def raw(self) -> str:
        """All text inside, as it stands."""
        return "".join(c if isinstance(c, str) else c.raw for c in self.content)

    def all(self, tag: str, **wanted: str) -> list[Element]:
        """Return the elements inside that have a tag and attributes, in order."""
        found = []
        for child in self.content:
            if isinstance(child, Element):
                has = all(child.attributes.get(name.rstrip("_")) == v for name, v in wanted.items())
                found += [child] if child.tag == tag and has else []
                found += child.all(tag, **wanted)
        return found

    def each(self) -> list[Element]:
        """Return all elements inside."""
        inside = [child for child in self.content if isinstance(child, Element)]
        return [e for child in inside for e in (child, *child.each())]


class _Strict(HTMLParser):
    """Builds the elements, and fails where a tag is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("document", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in <{tag}>"
        element = Element(tag, dict(attrs))
        self.open[-1].content.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in EMPTY_IN_SVG, f"<{tag}/> is not closed in HTML"
        self.open[-1].content.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)

    def handle_comment(self, data: str) -> None:
        pytest.fail(f"a comment: {data!r}")


def parsed(coverage: Coverage) -> Element:
    """Return the elements of a coverage's page."""
    parser = _Strict()
    parser.feed(page(coverage))
    parser.close()
    (document,) = parser.open
    return document


def rows_of(document: Element) -> list[Element]:
    """Return the bodies of the table of GEMMs."""
    (table,) = document.all("table", id="table")
    return table.all("tbody")


@pytest.fixture(scope="module")
def llama() -> Element:
    """The page of a model."""
    return parsed(samples.llama())


def test_each_gemm_has_a_row(llama: Element) -> None:
    """The rows are those of the record, in its order, with the outcome as a word."""
    gemms = samples.llama().gemms
    rows = rows_of(llama)
    assert len(rows) == len(gemms)
    for row, gemm in zip(rows, gemms, strict=True):
        cells = {e.attributes["class"]: e for e in row.all("tr")[0].all("td")}
        assert cells["outcome"].text == gemm.outcome
        sizes = (gemm.batch, gemm.m, gemm.n, gemm.k, gemm.count)
        assert [int(cells[n].text) for n in ("batch", "m", "n", "k", "count")] == list(sizes)
        assert cells["op"].text == f"{gemm.op_name} {gemm.phase}"
        assert cells["dtype"].text == gemm.dtype
        assert cells["where"].text.startswith(gemm.origins[0])
        assert cells["time"].text.startswith("≥") == (gemm.time_us is None)


def test_all_of_a_gemm_is_in_its_details(llama: Element) -> None:
    """Key, origins, targets, alternatives, drops, neighbours and advice are on the page."""
    for row, gemm in zip(rows_of(llama), samples.llama().gemms, strict=True):
        (details,) = row.all("template")
        texts = {e.text for e in details.each()}
        assert gemm.key in texts
        assert {*gemm.origins, *gemm.dropped} <= texts
        assert "; ".join(gemm.targets) in texts
        assert (gemm.advice or gemm.key) in texts
        assert {near.key for near in gemm.nearest} <= texts
        assert all("; ".join(near.differences) in details.text for near in gemm.nearest)
        kernels = [row.all("td") for table in details.all("table") for row in table.all("tr")[1:]]
        times = [found["time_us"] for found in gemm.alternatives]
        assert len(kernels) == (gemm.template_id is not None) + len(times)
        for (kernel, us, _), time_us in zip(kernels[1:], times, strict=True):
            assert kernel.text
            assert float(us.text.replace(",", "")) == pytest.approx(time_us, rel=0.01, abs=0.05)


def test_summary(llama: Element) -> None:
    """The share of covered time, the counts and the versions are in the summary."""
    coverage = samples.llama()
    (header,) = llama.all("header")
    (summary,) = llama.all("section", **{"aria-label": "Summary"})
    for text in (coverage.device, coverage.torch, coverage.triton, *coverage.tables):
        assert text in header.text
    assert f"{100 * coverage.covered:.1f} % of the GEMM time is covered" in summary.text
    for outcome in ("hit", "miss", "dropped"):
        assert f"{outcome} {coverage.count(outcome)} of {len(coverage.gemms)} GEMMs" in summary.text


def test_bars_fill_their_width(llama: Element) -> None:
    """The parts of each bar add up to its width, and those of the targets to all time."""
    bars = [svg for svg in llama.all("svg", class_="stack") if svg.all("rect")]
    assert len(bars) == 1 + 9 + 4 + 3 + 2  # all, targets, ops, dtypes, phases
    for bar in bars:
        widths = [float((r.attributes["width"] or "").rstrip("%")) for r in bar.all("rect")]
        starts = [float((r.attributes["x"] or "").rstrip("%")) for r in bar.all("rect")]
        assert sum(widths) == pytest.approx(100, abs=0.02)
        assert starts == pytest.approx([sum(widths[:i]) for i in range(len(widths))], abs=0.02)


def test_time_of_targets_adds_up() -> None:
    """A GEMM of several targets counts in each in part, and all targets take all time."""
    coverage = samples.llama()
    facet = page_module._facet(coverage, "target")
    _, bars = page_module._bars(coverage, facet)
    assert [bar.name for bar in bars] == list(coverage.targets)
    assert sum(bar.total for bar in bars) == pytest.approx(coverage.total_us)


@pytest.mark.parametrize("name", SAMPLES)
def test_page_loads_nothing(name: str) -> None:
    """No element names another file, a handler or a style of its own; links stay on the page."""
    for element in parsed(SAMPLES[name]()).each():
        assert element.tag not in {"img", "link", "iframe", "object", "embed", "base", "image"}
        for attribute, value in element.attributes.items():
            assert attribute not in {"src", "srcset", "style", "action", "formaction", "xlink:href"}
            assert not attribute.startswith("on")
            assert attribute != "href" or value == "#gemms"


@pytest.mark.parametrize("name", ["page.css", "page.js"])
def test_style_and_script_load_nothing(name: str) -> None:
    """Neither names an address, another file, or a way to make markup of a text."""
    text = (Path(page_module.__file__).parent / "templates" / name).read_text("utf-8")
    forbidden = (
        r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttp|innerHTML|insertAdjacent|eval|write\("
    )
    assert re.findall(forbidden, text) == []
    assert "</" not in text and "<!--" not in text


@pytest.mark.parametrize("name", SAMPLES)
def test_policy_allows_the_own_style_and_script_alone(name: str) -> None:
    """The policy comes first and names the digests of what stands between the tags."""
    document = parsed(SAMPLES[name]())
    policies = document.all("meta", **{"http-equiv": "Content-Security-Policy"})
    (policy,) = (meta.attributes["content"] or "" for meta in policies)
    (style,) = document.all("style")
    scripts = document.all("script")
    assert len(scripts) == (name != "empty")
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src '{digest_of(style.raw)}'" in policy
    assert all(f"script-src '{digest_of(script.raw)}'" in policy for script in scripts)
    assert "unsafe" not in policy
    assert "http" not in policy
    (head,) = document.all("head")
    tags = [child.tag for child in head.content if isinstance(child, Element)]
    assert tags[:2] == ["meta", "meta"] and tags.index("style") > 1


def digest_of(text: str) -> str:
    """Return a text's digest as a policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def test_hostile_text_stays_text() -> None:
    """Texts that look like markup make no element, and can be read on the page."""
    harmless = replace(samples.gemm(m=16, n=4096, k=4096), targets=("a", "b", "c", "d"))
    plain = samples.coverage(harmless, replace(harmless, outcome="miss", phase="backward"))
    document = parsed(samples.hostile())
    known = {element.tag for element in parsed(plain).each()} | {"ul", "li"}
    assert {element.tag for element in document.each()} <= known
    for row in rows_of(document):
        (details,) = row.all("template")
        assert [e.text for e in details.all("section", class_="more origins")[0].all("li")] == [
            *samples.HOSTILE[:3],
            r"a\x00b\x1b[31mc\r\nd\u202ee\u2028f\ud800g&lt;",
        ]


def test_every_sign_can_be_seen_or_written() -> None:
    """No control, mark of direction or half of a pair is left, so that the page can be saved."""
    text = page(samples.hostile())
    assert text.encode("utf-8")
    assert [sign for sign in set(text) if not sign.isprintable()] == ["\n"]


@pytest.mark.parametrize("field_name", ["advice", "table", "dtype", "op_name", "key"])
def test_template_syntax_stays_text(field_name: str) -> None:
    """What looks like the language of the template is not run."""
    found: dict[str, Any] = {field_name: "{{ 6 * 7 }}{% set a = 1 %}"}
    gemm = replace(samples.gemm(m=16, n=4096, k=4096, outcome="miss"), **found)
    assert "{{ 6 * 7 }}{% set a = 1 %}" in parsed(samples.coverage(gemm)).text


def test_same_page_in_every_process() -> None:
    """The bytes do not depend on the hash seed, the locale, the time zone or the run."""
    code = (
        "import sys, hashlib; sys.path.insert(0, sys.argv[1]); import coverage_samples as s\n"
        "from inductor_tables.analysis.page import page\n"
        "print(hashlib.sha256(page(s.llama()).encode()).hexdigest())"
    )
    here = hashlib.sha256(page(samples.llama()).encode()).hexdigest()
    for seed, zone in (("1", "Asia/Tokyo"), ("2", "America/Lima")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == here, done.stderr


def test_page_without_a_gemm() -> None:
    """Nothing to show is said, without a table, a plot or a share."""
    document = parsed(replace(samples.coverage(), targets=("an empty model",), tables=()))
    assert "No GEMM was found in: an empty model." in document.text
    assert "no table serves the device" in document.text
    assert document.all("table") == []
    assert document.all("svg", class_="plot") == []


def test_columns_and_filters_that_say_nothing_are_left_out() -> None:
    """One value of a property needs no filter, and without batches there is no such column."""
    document = parsed(samples.coverage(samples.gemm(m=16, n=4096, k=4096)))
    assert document.all("input", type="checkbox") == []
    assert document.all("td", class_="batch") == []
    assert [cell.text for cell in document.all("td", class_="op")] == ["mm"]
    assert document.all("section", **{"aria-label": "Coverage by time"}) == []


@pytest.mark.parametrize("changed", [{"flops": 0, "roofline_us": 0.0}, {"bytes": 0}, {"m": 0}])
def test_products_of_nothing(changed: dict[str, Any]) -> None:
    """A product without work, bytes or time makes a row, whether or not it can be plotted."""
    empty = replace(samples.gemm(m=16, n=4096, k=4096, time_us=None), **changed)
    assert len(rows_of(parsed(samples.coverage(empty)))) == 1
    both = samples.coverage(empty, samples.gemm(m=16, n=64, k=4096))
    assert len(rows_of(parsed(both))) == 2


def test_points_of_the_plot() -> None:
    """What is recorded stands at or below its roof, what is not on it, all inside the plot."""
    coverage = samples.llama()
    plot = plot_of(coverage)
    assert plot is not None
    assert sorted(point.index for point in plot.points) == list(range(len(coverage.gemms)))
    roofs = {roof.dtype: roof for roof in plot.roofs}
    assert set(roofs) == {"bfloat16", "float8_e4m3fn", "float32"}
    for point in plot.points:
        roof = roofs[point.gemm.dtype]
        slope = (roof.y2 - roof.y1) / (roof.x2 - roof.x1)
        ceiling = max(roof.y2, roof.y1 + slope * (point.x - roof.x1))
        assert 0 <= point.x <= 100 and 0 <= point.y <= 100
        if point.recorded:
            assert point.y >= ceiling
        else:
            assert point.y == pytest.approx(ceiling)
    radii = [point.radius for point in plot.points]
    assert radii == sorted(radii, reverse=True), "large points would hide small ones"
    for ticks in (plot.x_ticks, plot.y_ticks):
        places = [tick.at for tick in ticks]
        assert len(places) >= 3 and all(0 <= place <= 100 for place in places)


def test_plot_of_a_dtype_without_a_peak() -> None:
    """A dtype that the device's peaks do not name has points, and no roof."""
    plot = plot_of(replace(samples.llama(), peak_tflops={}))
    assert plot is not None
    assert plot.roofs == ()
    assert len(plot.points) == len(samples.llama().gemms)


def test_plot_of_a_device_without_a_bandwidth() -> None:
    """Where the device does not say its bandwidth, the roofs are flat."""
    plot = plot_of(replace(samples.llama(), peak_gb_s=0.0))
    assert plot is not None
    assert [(roof.x1, roof.x2) for roof in plot.roofs] == [(0, 0)] * 3
    assert all(roof.y1 == roof.y2 for roof in plot.roofs)
    assert "GB/s" not in parsed(replace(samples.llama(), peak_gb_s=0.0)).text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1e-9, "< 0.1 %"), (0.0005, "0.1 %"), (0.342, "34.2 %"),
     (0.99999, "99.9 %"), (1.0, "100 %")],
)  # fmt: skip
def test_only_all_is_100_percent(share: float, text: str) -> None:
    """A share is never rounded to nothing or to all."""
    assert page_module._percent(share) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.0, "0.000 µs"), (0.25, "0.250 µs"), (9.76, "9.8 µs"), (999.4, "999 µs"), (1000, "1.0 ms"),
     (41_300, "41.3 ms"), (2.5e6, "2.5 s"), (3.6e9, "3,600 s")],
)  # fmt: skip
def test_durations(us: float, text: str) -> None:
    """A duration has the unit and the digits that one reads."""
    assert page_module._duration(us) == text


@pytest.mark.parametrize(
    ("template", "params", "text"),
    [
        ("aten::mm", {}, "aten::mm"),
        (
            "triton::mm",
            {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 5,
             "GROUP_M": 8, "EVEN_K": True},
            "triton::mm 64x32x128, 4 warps, 5 stages, GROUP_M=8",
        ),
        ("decompose_k", {"k_split": 32}, "decompose_k, k_split=32"),
    ],
)  # fmt: skip
def test_kernels(template: str, params: dict[str, Any], text: str) -> None:
    """A kernel is its template and what was tuned; facts of the graph are left out."""
    assert kernel_text(template, params) == text


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("model.layers.0.mlp.up_proj", ("model.layers.0.", "mlp.up_proj")),
        ("serving/rerank/score.py:118", ("serving/rerank/", "score.py:118")),
        ("lm_head", ("", "lm_head")),
        ("a.b", ("", "a.b")),
        ("..", (".", ".")),
        ("", ("", "")),
    ],
)
def test_paths_are_cut_in_front(path: str, parts: tuple[str, str]) -> None:
    """The last two parts of a path are kept together; nothing is lost."""
    assert page_module._split_path(path) == parts


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(scheme: str) -> None:
    """Text has a contrast of 4.5 and marks one of 3 on each ground (WCAG 2.1, AA)."""
    css = (Path(page_module.__file__).parent / "templates" / "page.css").read_text("utf-8")
    blocks = re.findall(r":root \{([^}]*--page[^}]*)\}", css)
    colours = dict(re.findall(r"--(\w+): (#\w+);", blocks[scheme == "dark"]))
    for ground in ("page", "panel", "soft"):
        for text in ("text", "muted", "link", "estimate"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for outcome in ("hit", "miss", "dropped"):
            assert contrast(colours[outcome], colours[ground]) >= 3, (outcome, ground)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2.1 defines it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rgb`` or ``#rrggbb``."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
