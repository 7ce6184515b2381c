"""What names of models become: functions of modules, exported files, and what moves a model."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from coverage_models import BF16, H200, HIDDEN, WIDTH, Mlp, meta, needs_simulation, stack
from torch import nn

from inductor_tables.analysis.moving import Mover, leaves, replace_tensors
from inductor_tables.analysis.origins import origin_text, shortened
from inductor_tables.analysis.survey import survey
from inductor_tables.analysis.targets import Case, DynamicSize, Options, load
from inductor_tables.decisions import Origin
from inductor_tables.errors import TargetError

MODULE = """
import torch
from torch import nn

class Made:
    @staticmethod
    def linear():
        return nn.Linear(8, 16), torch.empty(4, 8)

def linear(tokens=4):
    return nn.Linear(8, 16), (torch.empty(tokens, 8),)

def needs(tokens):
    return linear(tokens)

def anything(**given):
    return linear(**given)

def named():
    return nn.Linear(8, 16), {"input": torch.empty(4, 8)}

def both():
    return [nn.Linear(8, 16), (torch.empty(4, 8),), None]

def function():
    return lambda x: x @ x.T, [torch.empty(4, 8)]

def on_the_cpu():
    return nn.Linear(8, 16), torch.empty(4, 8, device="cpu")

def fails():
    raise KeyError("weights")

def leaves():
    raise SystemExit(3)

def two(a, b):
    pass

def number():
    return 7

def one():
    return (nn.Linear(8, 16),)

def no_model():
    return 7, torch.empty(4, 8)

def no_args():
    return nn.Linear(8, 16), torch.empty(4, 8), {}

linear_module = nn.Linear(8, 16)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules of targets, of which some cannot be imported."""
    folder = tmp_path_factory.mktemp("targets")
    (folder / "tables_test_targets.py").write_text(MODULE)
    (folder / "tables_test_package").mkdir()
    (folder / "tables_test_package" / "inner.py").write_text(MODULE)
    (folder / "tables_test_broken.py").write_text("import no_such_library\n")
    (folder / "tables_test_leaves.py").write_text("import sys; sys.exit(3)\n")
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That folder as current directory, which alone makes it importable."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])
    yield
    for name in [name for name in sys.modules if name.startswith("tables_test_")]:
        del sys.modules[name]


def one(target: str, **options: Any) -> Case:
    """Return the only call of a target."""
    (case,) = load(target, Options(**options))
    return case


# --- functions of modules ---------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "tables_test_targets:linear",
        "tables_test_targets:Made.linear",
        "tables_test_package.inner:linear",
        "tables_test_targets:named",
        "tables_test_targets:both",
        "tables_test_targets:function",
        "tables_test_targets:anything",
    ],
)
def test_forms_of_a_result(target: str) -> None:
    """A model comes with a tuple, a list, a dict or one input; nothing of it is allocated."""
    case = one(target)
    assert case.name == target and callable(case.model)
    (x,) = leaves((case.args, dict(case.kwargs)))
    assert x.shape == (4, 8) and x.device.type == "meta"
    if isinstance(case.model, nn.Module):
        assert {p.device.type for p in case.model.parameters()} == {"meta"}


def test_explicit_devices_are_kept() -> None:
    """An input that is put on the CPU stays there; it is read for its layout."""
    (x,) = leaves(one("tables_test_targets:on_the_cpu").args)
    assert x.device.type == "cpu"


@pytest.mark.parametrize("name", ["linear", "needs", "anything"])
def test_token_counts(name: str) -> None:
    """Each token count is a call of its own with a name of its own."""
    target = f"tables_test_targets:{name}"
    cases = load(target, Options(tokens=(1, 16)))
    assert [case.name for case in cases] == [f"{target} tokens=1", f"{target} tokens=16"]
    assert [next(leaves(case.args)).shape[0] for case in cases] == [1, 16]


def test_type_of_floating_point_tensors() -> None:
    """A type is asked for by its name."""
    assert one("tables_test_targets:linear", dtype="bfloat16").dtype is BF16
    assert one("tables_test_targets:linear", dtype="torch.float16").dtype is torch.float16
    assert one("tables_test_targets:linear").dtype is None


@pytest.mark.parametrize(
    ("target", "match"),
    [
        ("model", r"'model' is none of: 'package\.module:callable', the path of a \.pt2"),
        ("module:", "is none of"),
        (":linear", "is none of"),
        ("models/mine.py:linear", r"'models/mine\.py' is no module's name; write .*folder\.file"),
        ("no_such_module:linear", "no module 'no_such_module' in the import path, which begins"),
        ("tables_test_package.nope:linear", r"no module 'tables_test_package\.nope'"),
        ("tables_test_broken:f", r"importing tables_test_broken raised .*no_such_library"),
        ("tables_test_leaves:f", "importing tables_test_leaves raised SystemExit: 3"),
        ("tables_test_targets:nope", "has no 'nope'; its functions: anything, both, fails"),
        ("tables_test_targets:nn", "is no function that returns a model .* of type module"),
        ("tables_test_targets:linear_module", "is no function .* of type Linear"),
        ("tables_test_targets:fails", r"calling it with \(\) raised KeyError: 'weights' at .*:\d+"),
        ("tables_test_targets:leaves", "raised SystemExit: 3"),
        ("tables_test_targets:two", "cannot be called: it needs a, b; only 'tokens'"),
        ("tables_test_targets:needs", "needs 'tokens': give token counts, such as --tokens"),
        ("tables_test_targets:number", r"returned int; expected \(model, inputs\)"),
        ("tables_test_targets:one", "returned a tuple of 1; expected"),
        ("tables_test_targets:no_model", "returned as model a int, which is no module"),
        ("tables_test_targets:no_args", "returned as args and kwargs Tensor and dict"),
        ("missing.pt2", r"missing\.pt2: there is no such file \(looked in "),
        ("missing.json", "there is no such file"),
    ],
)
def test_bad_targets(target: str, match: str) -> None:
    """Each kind of a bad target has an error that says what to do."""
    with pytest.raises(TargetError, match=match):
        load(target, Options())


def test_token_counts_that_are_not_taken() -> None:
    """Token counts for a function without that parameter are an error, not one call."""
    with pytest.raises(TargetError, match="has no parameter 'tokens'"):
        load("tables_test_targets:named", Options(tokens=(1,)))


@pytest.mark.parametrize("name", ["int8", "float", "nope", "nn"])
def test_types_that_are_none(name: str) -> None:
    """A type that no floating-point tensor has is refused, but for torch's own aliases."""
    if name == "float":
        assert one("tables_test_targets:linear", dtype=name).dtype is torch.float32
        return
    with pytest.raises(TargetError, match=f"dtype '{name}': torch has no such"):
        load("tables_test_targets:linear", Options(dtype=name))


# --- exported files ---------------------------------------------------------------------


class Exported(nn.Module):
    """A model whose graph makes a tensor, and asserts the device of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mlp(), Mlp()])
        self.register_buffer("shift", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        """Map (tokens, WIDTH) to the same shape."""
        for layer in self.layers:
            x = layer(x)
        places = torch.arange(x.shape[0], device=x.device).to(x.dtype)[:, None]
        return x * places * scale + self.shift + torch.zeros(WIDTH).to(x.dtype)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model exported for one size and for a range of sizes."""
    folder = tmp_path_factory.mktemp("exported")
    model = Exported().to(BF16)
    x, scale = torch.zeros(16, WIDTH, dtype=BF16), torch.ones(WIDTH, dtype=BF16)
    size = torch.export.Dim("tokens", min=2, max=64)
    shapes: dict[str, Any] = {"static": None, "ranged": {"x": {0: size}, "scale": None}}
    made = {}
    for name, dynamic in shapes.items():
        program = torch.export.export(model, (x,), {"scale": scale}, dynamic_shapes=dynamic)
        made[name] = folder / f"{name}.pt2"
        torch.export.save(program, made[name])
    return made


def test_sizes_of_an_export(files: dict[str, Path]) -> None:
    """Sizes that were exported for a range keep it."""
    assert one(str(files["static"])).dynamic == ()
    (size,) = one(str(files["ranged"])).dynamic
    assert size == DynamicSize(leaf=0, dim=0, least=2, most=64)


@needs_simulation
@pytest.mark.parametrize("name", ["static", "ranged"])
@pytest.mark.parametrize("backward", [False, True])
def test_exported_models(files: dict[str, Path], name: str, backward: bool) -> None:
    """An export is lowered for the device whatever it was exported on, with its module paths."""
    found = survey([one(str(files[name]))], device=H200, backward=backward)
    forward = [g for g in found.gemms if g.phase != "backward"]
    assert sum(g.count for g in forward) == 4
    assert {g.m for g in forward} == {16}
    (up,) = (g for g in forward if g.n == HIDDEN)
    assert up.origins == ("layers.0.up", "layers.1.up")
    assert sum(g.count for g in found.gemms) - 4 == (7 if backward else 0)


@needs_simulation
def test_ranges_that_do_not_hold() -> None:
    """Where the code allows one size only, the range is dropped, not the model."""
    model = meta(lambda: nn.Linear(WIDTH, HIDDEN, bias=False))
    x = torch.empty(16, WIDTH, dtype=BF16, device="meta")

    def fixed(x: torch.Tensor) -> torch.Tensor:
        return model(x.view(16, WIDTH))

    sizes = (DynamicSize(leaf=0, dim=0, least=2, most=64),)
    found = survey([Case(name="fixed", model=fixed, args=(x,), dynamic=sizes)], device=H200)
    assert [(g.m, g.count) for g in found.gemms] == [(16, 1)]


def test_token_counts_of_an_export(files: dict[str, Path]) -> None:
    """An export has its sizes; token counts are refused."""
    with pytest.raises(TargetError, match="has the sizes that it was exported with"):
        load(str(files["static"]), Options(tokens=(1,)))


def test_files_that_are_no_exports(tmp_path: Path) -> None:
    """A file that torch cannot read is named."""
    path = tmp_path / "model.pt2"
    path.write_bytes(b"nothing")
    with pytest.raises(TargetError, match=r"model\.pt2: torch\.export\.load of torch .* cannot"):
        load(str(path), Options())


# --- moving -----------------------------------------------------------------------------


GLOBAL = nn.Linear(2, 2)
STACK = meta(stack)


def run_global(x: Any) -> Any:
    """Use a module of this file."""
    return STACK(x)


class Pair(NamedTuple):
    """Two things."""

    left: Any
    right: Any


class Holder:
    """An object that holds a tensor."""

    def __init__(self) -> None:
        self.parts = {"cache": [torch.zeros(2)]}
        self.name = "holder"


def to_meta() -> Mover:
    """Return what moves to the meta device."""
    return Mover(lambda t: t.to("meta"), lambda m: nn.Linear(2, 2, device="meta"))


def test_containers_are_moved() -> None:
    """Tuples, lists, dicts and objects are copied with what they hold; the rest is kept."""
    holder, label = Holder(), object()
    given = (torch.zeros(1), [Pair(torch.zeros(2), 3)], {"a": holder, "b": label})
    moved = to_meta()(given)
    assert [t.device.type for t in leaves(moved)] == ["meta", "meta"]
    assert isinstance(moved[1][0], Pair) and moved[1][0].right == 3
    assert moved[2]["a"] is not holder and moved[2]["a"].name == "holder"
    assert moved[2]["a"].parts["cache"][0].device.type == "meta"
    assert moved[2]["b"] is label
    assert holder.parts["cache"][0].device.type == "cpu"


def test_functions_are_moved() -> None:
    """A function is copied with its free variables, defaults and globals; it keeps its own."""
    model, offset = nn.Linear(2, 2), torch.zeros(2)

    def run(x: Any, shift: Any = offset, *, scale: Any = offset) -> Any:
        return GLOBAL(model(x)) + shift * scale + offset

    moved = to_meta()(run)
    assert moved(torch.zeros(1, 2, device="meta")).device.type == "meta"
    assert run(torch.zeros(1, 2)).device.type == "cpu"
    partial = to_meta()(functools.partial(run, shift=offset))
    assert partial(torch.zeros(1, 2, device="meta")).device.type == "meta"


def test_methods_are_moved() -> None:
    """A method is that of the copied module."""
    moved = to_meta()(nn.Linear(2, 2).forward)
    assert moved(torch.zeros(1, 2, device="meta")).device.type == "meta"


def test_what_occurs_twice_is_moved_once() -> None:
    """A module that two functions share is one afterwards; what refers to itself ends."""
    model = nn.Linear(2, 2)
    move = to_meta()
    first, second = move((lambda: model, lambda: model))
    assert first() is second() is not model

    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert move(factorial)(4) == 24


def test_a_function_without_tensors_is_kept() -> None:
    """What holds no tensor is not copied."""

    def plain(x: Any) -> Any:
        return x

    assert to_meta()(plain) is plain


def test_tensors_of_a_module_are_replaced() -> None:
    """Parameters stay parameters and tied ones tied; buffers and plain attributes go along."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    model[0].plain = torch.zeros(2)
    replace_tensors(model, lambda t: t.to("meta"))
    assert model[0].weight is model[1].weight and isinstance(model[0].weight, nn.Parameter)
    held = [*model.parameters(), *model.buffers(), model[0].plain]
    assert {t.device.type for t in held} == {"meta"}


@needs_simulation
def test_a_function_of_a_module_global() -> None:
    """A module that a function takes from its globals is simulated too."""
    x = torch.empty(16, WIDTH, dtype=BF16, device="meta")
    case = Case(name="global", model=run_global, args=(x,))
    assert sum(g.count for g in survey([case], device=H200).gemms) == 5


# --- origins ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        (["head"], ["head"]),
        (["layers.0.up", "layers.1.up", "layers.2.up"], ["layers.0-2.up"]),
        (["layers.0.up", "layers.2.up", "layers.3.up"], ["layers.0,2-3.up"]),
        (["0", "2", "1"], ["0-2"]),
        (["a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"], ["a.0-1.b.0-1"]),
        (["a.0.b.0", "a.1.b.1"], ["a.0.b.0", "a.1.b.1"]),
        (["model.py:12", "conv2d", "layer10.x"], ["model.py:12", "conv2d", "layer10.x"]),
        (["b", "a", "b"], ["b", "a"]),
    ],
)
def test_repeated_layers_are_drawn_together(given: list[str], expected: list[str]) -> None:
    """Paths that differ in one number are one, with ranges."""
    assert shortened(given) == expected


def test_texts_of_origins(folder: Path) -> None:
    """A module's path comes first; a line is relative to the current directory where it can be."""
    line = f"{folder / 'model.py'}:12"
    assert origin_text(Origin(module="layers.0", line=line)) == "layers.0"
    assert origin_text(Origin(module=None, line=line)) == "model.py:12"
    assert origin_text(Origin(module=None, line="/elsewhere/model.py:3")) == "/elsewhere/model.py:3"
    assert origin_text(Origin(module=None, line=None)) == "unknown"
