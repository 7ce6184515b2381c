"""The coverage page in a real browser: headless Chromium, driven by selenium.

Needs the packages ``chromium`` and ``chromium-driver`` of Debian, or ``CHROME`` and
``CHROMEDRIVER`` in the environment, and the extra ``browser``. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import coverage_samples as samples
import pytest

from inductor_tables.analysis.page import page
from inductor_tables.analysis.records import Coverage, Gemm

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
waiting: Any = pytest.importorskip("selenium.webdriver.support.wait")

CHROME: Final = os.environ.get("CHROME") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
DRIVER: Final = os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")

pytestmark = [
    pytest.mark.skipif(CHROME is None, reason="no Chromium: not on PATH, CHROME is not set"),
    pytest.mark.skipif(DRIVER is None, reason="no chromedriver: not on PATH, CHROMEDRIVER not set"),
]

FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
ENTER: Final = "\ue007"
TAB: Final = "\ue004"
ESCAPE: Final = "\ue00c"

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a browser with an empty profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROME
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Yield a function that shows a coverage; afterwards the console must be empty."""

    def show(coverage: Coverage, width: int = 1280, scheme: str = "light") -> Any:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        path = tmp_path / "coverage.html"
        path.write_text(page(coverage), "utf-8")
        console(browser), requests(browser)  # what another page left
        browser.get(path.as_uri())
        loaded = "return location.href === arguments[0] && document.readyState === 'complete'"
        until(browser, lambda _: browser.execute_script(loaded, path.as_uri()))  # it may be long
        return browser

    yield show
    assert console(browser) == []


def console(browser: Any) -> list[str]:
    """Return the messages since the last call; they come late, so one more is waited for."""
    browser.execute_script("console.info('no more messages')")
    messages: list[str] = []
    while not any("no more messages" in message for message in messages):
        messages += [entry["message"] for entry in browser.get_log("browser")]
    return [message for message in messages if "no more messages" not in message]


def requests(browser: Any) -> list[str]:
    """Return the addresses that the page in view asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [s["request"]["url"] for s in sent if s["documentURL"] == browser.current_url]


def until(browser: Any, true: Callable[[Any], bool]) -> None:
    """Wait until something is true; a busy machine takes its time."""
    waiting.WebDriverWait(browser, 30).until(true)


def find(browser: Any, selector: str) -> list[Any]:
    """Return the elements of a CSS selector."""
    found: list[Any] = browser.find_elements("css selector", selector)
    return found


def one(browser: Any, selector: str) -> Any:
    """Return the only element of a CSS selector."""
    (found,) = find(browser, selector)
    return found


def shown(browser: Any, column: str = "part") -> list[str]:
    """Return the texts of a column of the rows that are not filtered out."""
    script = (
        "return [...document.querySelectorAll("
        "`#table > tbody:not([hidden]) > tr > td.${arguments[0]}`)]"
        ".map(cell => cell.textContent.trim().replace(/\\s+/g, ' '))"
    )
    found: list[str] = browser.execute_script(script, column)
    return found


def counts(browser: Any, facet: str) -> list[int]:
    """Return the counts beside the values of a filter."""
    outputs = find(browser, f"#facets [name={facet}] + span output")
    return [int(output.get_property("value")) for output in outputs]


def us(gemm: Gemm) -> float:
    """Return a product's time in the model."""
    return gemm.estimated_us * gemm.count


TEXTS: Final = {"outcome", "op", "dtype"}
"""What is sorted as text, and first upwards."""

SORTS: Final[dict[str, Callable[[Gemm], Any]]] = {
    "outcome": lambda g: g.outcome,
    "op": lambda g: f"{g.op_name} {g.phase}",
    "batch": lambda g: g.batch,
    "m": lambda g: g.m,
    "n": lambda g: g.n,
    "k": lambda g: g.k,
    "dtype": lambda g: ("bfloat16", "float8_e4m3fn", "float32").index(g.dtype),
    "count": lambda g: g.count,
    "time": lambda g: g.estimated_us,
    "margin": lambda g: g.margin,
    "part": us,
}


# --- it opens ---------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [samples.llama, samples.hostile, samples.coverage])
def test_opens_without_a_message_or_request(sample: Callable[[], Coverage], show: Show) -> None:
    """The page asks for itself alone, and nothing is said on the console."""
    browser = show(sample())
    assert requests(browser) == [browser.current_url]
    assert len(find(browser, "#table > tbody")) == len(sample().gemms)


def test_messages_and_requests_would_be_seen(browser: Any, tmp_path: Path) -> None:
    """What the other tests look for is seen where it happens: an error, a refusal, a request."""
    (tmp_path / "other.css").write_text("")
    page_with_faults = (
        "<!doctype html><link rel=stylesheet href=other.css>"
        "<meta http-equiv=Content-Security-Policy content=\"style-src 'none'\"><style>p{}</style>"
        "<script>missing()</script>"
    )
    (tmp_path / "faults.html").write_text(page_with_faults)
    browser.get((tmp_path / "faults.html").as_uri())
    messages = " ".join(console(browser))
    assert "missing is not defined" in messages
    assert "Content Security Policy" in messages
    assert any(url.endswith("other.css") for url in requests(browser))


def test_hostile_text_does_nothing(show: Show) -> None:
    """No text of a record runs or becomes an element, also not in details and in the card."""
    browser = show(samples.hostile())
    for button in find(browser, "td.outcome button"):
        button.click()
    one(browser, "[name=text]").send_keys("window.hostile")
    assert browser.execute_script("return window.hostile") is None
    assert find(browser, "img, [onload], [onerror], main script") == []
    assert len(shown(browser)) == 3


def test_policy_is_kept(browser: Any, show: Show) -> None:
    """Another script is refused, and no text is ever taken for markup."""
    show(samples.llama())
    run = (
        "const s = document.createElement('script');"
        "try { s.textContent = 'window.hostile = 1' } catch (e) { return e.name }"
        "document.body.append(s); return window.hostile"
    )
    assert browser.execute_script(run) in {"TypeError", None}
    assert browser.execute_script("return window.hostile") is None
    markup = "try { document.body.innerHTML = '<b>' } catch (e) { return e.name }"
    assert browser.execute_script(markup) == "TypeError"
    assert console(browser)  # it says so


# --- sorting ----------------------------------------------------------------------------


@pytest.mark.parametrize("column", SORTS)
def test_sorting(column: str, show: Show) -> None:
    """A click on a head sorts by it, the next one turns the order; no value comes last."""
    coverage = samples.llama()
    browser = show(coverage)
    value = SORTS[column]
    known = [gemm for gemm in coverage.gemms if value(gemm) is not None]
    unknown = [gemm for gemm in coverage.gemms if value(gemm) is None]
    upwards_first = column in TEXTS or column == "part"  # which the page comes sorted by
    directions = ("ascending", "descending")
    for direction in directions if upwards_first else directions[::-1]:
        one(browser, f"th.{column} button").click()
        ranked = sorted(known, key=value, reverse=direction == "descending")
        ranked = _stable(ranked, known, value)
        assert [int(m) for m in shown(browser, "m")] == [gemm.m for gemm in ranked + unknown]
        head = one(browser, "[aria-sort]")
        assert head.get_attribute("class") == column
        assert head.get_attribute("aria-sort") == direction


def _stable(ranked: list[Gemm], order: list[Gemm], value: Callable[[Gemm], Any]) -> list[Gemm]:
    """Return products with those of one value in the order of the record, whichever way."""
    values = list(dict.fromkeys(value(gemm) for gemm in ranked))
    return [gemm for v in values for gemm in order if value(gemm) == v]


def test_sorting_by_two(show: Show) -> None:
    """Equal ones stay as they were sorted before: by M, then by outcome."""
    browser = show(samples.llama())
    one(browser, "th.m button").click()
    one(browser, "th.outcome button").click()
    found = list(zip(shown(browser, "outcome"), map(int, shown(browser, "m")), strict=True))
    assert found == sorted(found, key=lambda row: (row[0], -row[1]))


def test_sorting_by_keyboard(show: Show) -> None:
    """The heads can be reached and used with keys alone."""
    browser = show(samples.llama())
    one(browser, "#outcome-0").send_keys(TAB)
    for _ in range(100):
        focused = browser.switch_to.active_element
        if focused.tag_name == "button" and focused.text == "M":
            break
        focused.send_keys(TAB)
    focused.send_keys(ENTER)
    sizes = [int(m) for m in shown(browser, "m")]
    assert sizes == sorted(sizes, reverse=True)


def test_modules_are_sorted_as_people_count(show: Show) -> None:
    """layers.2 comes before layers.10."""
    gemms = [
        samples.gemm(m=16 * i, n=64, k=4096, origins=(f"layers.{i}.proj",)) for i in (10, 2, 1)
    ]
    browser = show(samples.coverage(*gemms))
    one(browser, "th.where button").click()
    assert shown(browser, "where") == ["layers.1.proj", "layers.2.proj", "layers.10.proj"]


# --- filtering --------------------------------------------------------------------------


def test_filter_by_outcome(show: Show) -> None:
    """Only products of the chosen outcomes are left, in the table and in the plot."""
    coverage = samples.llama()
    browser = show(coverage)
    one(browser, "#outcome-1").click()
    wanted = [gemm for gemm in coverage.gemms if gemm.outcome == "miss"]
    assert set(shown(browser, "outcome")) == {"miss"}
    assert len(shown(browser)) == len(wanted) == len(find(browser, ".point:not([hidden])"))
    share = 100 * sum(map(us, wanted)) / coverage.total_us
    assert one(browser, "#shown").text == (
        f"{len(wanted)} of {len(coverage.gemms)} GEMMs, {share:.1f} % of the time"
    )
    one(browser, "#outcome-2").click()
    assert set(shown(browser, "outcome")) == {"miss", "dropped"}


def test_counts_are_those_of_the_other_filters(show: Show) -> None:
    """A value's count is what it would show, given what is chosen in the other filters."""
    coverage = samples.llama()
    browser = show(coverage)
    outcomes, ops = ("hit", "miss", "dropped"), ("mm", "addmm", "bmm", "scaled_mm")
    assert counts(browser, "outcome") == [coverage.count("hit"), coverage.count("miss"), 2]
    one(browser, "#op-1").click()
    one(browser, "#outcome-0").click()
    gemms = coverage.gemms
    assert counts(browser, "outcome") == [
        sum(g.op_name == "addmm" and g.outcome == outcome for g in gemms) for outcome in outcomes
    ]
    assert counts(browser, "op") == [
        sum(g.outcome == "hit" and g.op_name == op for g in gemms) for op in ops
    ]
    assert sum(counts(browser, "dtype")) == len(shown(browser))


def test_search(show: Show) -> None:
    """All words must be found, in whatever is shown of a product, also in its details."""
    coverage = samples.llama()
    browser = show(coverage)
    search = one(browser, "[name=text]")
    for words, wanted in (
        ("layers.31.mlp", lambda g: "layers.31.mlp" in " ".join(g.origins)),
        ("LM_HEAD", lambda g: g.origins == ("lm_head",)),
        ("[8192, 4096], q_proj", lambda g: "[8192, 4096]," in g.key and "q_p" in g.origins[0]),
        ("aten::mm bmm", lambda g: g.op_name == "bmm" and g.outcome == "hit"),
        ("no such thing", lambda g: False),
    ):
        search.clear()
        search.send_keys(words)
        expected = [gemm.m for gemm in coverage.gemms if wanted(gemm)]
        assert [int(m) for m in shown(browser, "m")] == expected, words
    assert one(browser, "#nothing").is_displayed()
    one(browser, "#filters [type=reset]").click()
    until(browser, lambda _: len(shown(browser)) == len(coverage.gemms))
    assert not one(browser, "#nothing").is_displayed()


def test_bars_and_gaps_lead_to_the_table(show: Show) -> None:
    """A bar's name filters by it; a gap and a point unfold their product, filtered or not."""
    coverage = samples.llama()
    browser = show(coverage)
    find(browser, ".bars a")[5].click()
    assert coverage.targets[5].endswith("tokens=8192")
    assert len(shown(browser)) == 5
    find(browser, ".summary a")[1].click()
    assert one(browser, "tbody.open td.m").text == str(coverage.gemms[1].m)
    one(browser, "#outcome-0").click()
    find(browser, ".summary a")[0].click()
    assert len(find(browser, "tbody.open")) == 2
    assert len(shown(browser)) == len(coverage.gemms)


# --- details ----------------------------------------------------------------------------


def test_details(show: Show) -> None:
    """A row unfolds to all that is known, by its button or anywhere on it, and folds again."""
    coverage = samples.llama()
    browser = show(coverage)
    for index, outcome in enumerate(("miss", "dropped", "hit")):
        gemm = coverage.gemms[index]
        assert gemm.outcome == outcome
        body = find(browser, "#table > tbody")[index]
        button = body.find_element("css selector", "td.outcome button")
        assert button.get_attribute("aria-expanded") == "false"
        (button if index else body.find_element("css selector", "td.where")).click()
        assert button.get_attribute("aria-expanded") == "true"
        details = body.find_element("css selector", "td.details").text
        assert gemm.key in details
        assert all(origin in details for origin in (*gemm.origins, *gemm.dropped))
        assert all("; ".join(near.differences) in details for near in gemm.nearest)
        chosen = body.find_elements("css selector", ".kernels tr")
        assert len(chosen) == (2 + len(gemm.alternatives) if gemm.template_id else 0)
        button.click()
        assert body.find_elements("css selector", "td.details") == []


def test_details_stay_with_their_row(show: Show) -> None:
    """Sorting and filtering move an unfolded row as one."""
    browser = show(samples.llama())
    find(browser, "td.outcome button")[0].click()
    key = one(browser, ".details .key code").text
    one(browser, "th.m button").click()
    one(browser, "th.m button").click()
    assert one(browser, "tbody.open .details .key code").text == key
    one(browser, "#outcome-0").click()
    assert not one(browser, "tbody.open").is_displayed()


def test_copy(show: Show) -> None:
    """The key is copied, or selected where there is no clipboard."""
    browser = show(samples.llama())
    find(browser, "td.outcome button")[0].click()
    button = one(browser, "[data-copy]")
    button.click()
    until(browser, lambda _: button.text in {"Copied", "Selected"})
    if button.text == "Selected":
        selected = browser.execute_script("return String(getSelection())")
        assert selected == samples.llama().gemms[0].key


def test_hover(show: Show) -> None:
    """The pointer on a row or a point shows key and alternatives, and away from it nothing."""
    browser = show(samples.llama())
    card = one(browser, "#card")
    hit = next(i for i, gemm in enumerate(samples.llama().gemms) if gemm.outcome == "hit")
    for near in (find(browser, "td.where")[hit], one(browser, f".point[data-index='{hit}'] > *")):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", near)
        webdriver.ActionChains(browser).move_to_element(near).perform()
        until(browser, lambda _: card.is_displayed())
        gemm = samples.llama().gemms[hit]
        assert gemm.key in card.text and card.text.count("triton::mm") == 3
        box = card.rect
        top = box["y"] - browser.execute_script("return scrollY")
        assert box["x"] >= 0 and box["x"] + box["width"] <= 1280
        assert top >= 0 and top + box["height"] <= 900
        webdriver.ActionChains(browser).move_to_element(one(browser, ".versions")).perform()
        until(browser, lambda _: not card.is_displayed())


def test_focus_shows_the_card(show: Show) -> None:
    """With keys alone the card is there, too, and Escape takes it away."""
    browser = show(samples.llama())
    one(browser, "th.part button").send_keys(TAB)
    assert samples.llama().gemms[0].key in one(browser, "#card").text
    browser.switch_to.active_element.send_keys(ESCAPE)
    assert not one(browser, "#card").is_displayed()


def test_points_lead_to_their_row(show: Show) -> None:
    """A click on a point unfolds its product and shows it."""
    browser = show(samples.llama())
    point = one(browser, ".point[data-index='12'] > *")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", point)
    browser.execute_script(
        "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", point
    )
    opened = one(browser, "tbody.open")
    assert samples.llama().gemms[12].key in opened.text
    top = opened.rect["y"] - browser.execute_script("return scrollY")
    assert 0 <= top < 900


# --- reading ----------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [samples.llama, samples.hostile])
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (400, "light"),
        (400, "dark"),
        (768, "light"),
        (1280, "light"),
        (1280, "dark"),
        (1920, "dark"),
    ],
)
def test_readable(width: int, scheme: str, sample: Callable[[], Coverage], show: Show) -> None:
    """The page never scrolls sideways, no number is cut off, no text is tiny."""
    browser = show(sample(), width, scheme)
    for button in find(browser, "td.outcome button")[:3]:
        button.click()
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    cut = """return [...document.querySelectorAll(
        'td:is(.m, .n, .k, .batch, .count, .time, .margin, .part), .bars td, h1, h2, h3, p, dd, li'
    )].filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
      .map(e => `${e.tagName}.${e.className}: ${e.textContent.trim()}`)"""
    assert browser.execute_script(cut) == []
    tiny = """return [...document.querySelectorAll('body *')]
        .filter(e => [...e.childNodes].some(c => c.nodeType === 3 && c.data.trim()))
        .map(e => parseFloat(getComputedStyle(e).fontSize)).sort((a, b) => a - b)[0]"""
    assert browser.execute_script(tiny) >= 11
    if width < 1000:
        return
    cells = find(browser, "#table > tbody:first-of-type > tr:first-of-type > td")
    heads = find(browser, "#table > thead th")
    for head, cell in zip(heads, cells, strict=True):
        assert abs(head.rect["x"] - cell.rect["x"]) < 1, "a head stands over its column"


def test_narrow_page_folds_the_filters(show: Show) -> None:
    """At 400 pixels the filters are folded, the products are cards, and all still works."""
    browser = show(samples.llama(), 400)
    box = one(browser, "#outcome-1")
    assert not box.is_displayed()
    one(browser, "#facets summary").click()
    box.click()
    assert set(shown(browser, "outcome")) == {"miss"}
    one(browser, "th.m button").click()
    sizes = [int(m) for m in shown(browser, "m")]
    assert sizes == sorted(sizes, reverse=True)
    where = find(browser, "#table > tbody:not([hidden]) td.where")[0]
    assert where.rect["width"] > 300


def test_paper_is_light(browser: Any, show: Show) -> None:
    """Printed from a dark screen, the page is dark on light, without filters, all rows drawn."""
    show(samples.llama(), scheme="dark")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    style = "return getComputedStyle(document.body).color"
    assert browser.execute_script(style) == "rgb(27, 31, 36)"
    assert not one(browser, "#filters").is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_two_thousand_products(show: Show, record_property: Callable[[str, object], None]) -> None:
    """2,000 products can be sorted, searched and filtered; the times are in the JUnit report."""
    number = 2000
    browser = show(samples.many(number))
    assert len(shown(browser)) == number
    timed = """const done = arguments[1], start = performance.now();
        const element = document.querySelector(arguments[0]);
        if (element.type === 'search') {
            element.value = 'block_3';
            element.dispatchEvent(new Event('input', {bubbles: true}));
        } else element.click();
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));"""
    for action in ("th.m button", "th.where button", "[name=text]", "#outcome-1"):
        record_property(f"{action}, ms", browser.execute_async_script(timed, action))
    assert 0 < len(shown(browser)) < number / 11
    assert set(shown(browser, "outcome")) == {"miss"}
