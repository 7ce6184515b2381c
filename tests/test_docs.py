"""The documents: every command line in them runs, or stands in ``NOT_RUN`` with a reason.

A command is a line of a shell fence, or inline code that begins like one (``_BEGINS``). A fence
is a shell's if it is tagged ``bash``, or has no tag and begins like a command. Each document's
commands run in their order, in a directory of its own that looks like the root of a checkout with
a few small files in it. Benchmarks and the tuner are asked for ``--help`` (unknown options fail all
the same), pytest for what it would run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import torch

from inductor_tables import problems

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENTS: Final = ("README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))
TAGS: Final = frozenset({"", "bash", "python", "text"})

_FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<tag>.*)\n(?P<body>(?:.*\n)*?)(?P=indent)```$", re.MULTILINE
)
_INLINE: Final = re.compile(r"`([^`]+)`")
_BEGINS: Final = re.compile(
    r"(?:export [A-Z_]+=|(?:[A-Z_]+=\S+ )+|)"
    r"(?:python (?:-m|-c|benchmarks/|tests/|train\.py)|inductor-tables |nox\b|pip |torchrun )"
    r"|export [A-Z_]+=|\(python -c |tlparse "
)

_GPU: Final = "needs a GPU"
_INSTALLS: Final = "installs packages, which the set-up of the tests has done"
_LOWERS: Final = "lowers fifty models: minutes; tests/build_tools/test_problem_files.py does a few"
_NOX: Final = "makes an environment for each torch: hours"
NOT_RUN: Final[Mapping[str, str]] = {
    '(python -c "import torch" 2>/dev/null || pip install torch==2.13.0 triton==3.7.1) && '
    'pip install -e ".[demo]" && python -m inductor_tables demo': (
        f"{_INSTALLS}; the demo is run by tests/test_cli.py"
    ),
    '(python -c "import torch" 2>/dev/null || pip install torch==2.13.0 triton==3.7.1) && '
    'pip install -e ".[test]" && python -m pytest -n auto --dist loadfile': (
        f"{_INSTALLS}; this is what runs now"
    ),
    'pip install -e ".[build]"': _INSTALLS,
    "pip install -e '.[build]'": _INSTALLS,
    "pip install -e '.[cli]'": _INSTALLS,
    "pip install 'inductor-tables[demo]'": _INSTALLS,
    "pip install transformers": _INSTALLS,
    "nox": _NOX,
    "nox -s \"tests(torch='2.13.0')\"": _NOX,
    "python -m pytest -m gpu tests/gpu": f"{_GPU}: nothing is collected without",
    "python tests/simulation/record_real_keys.py "
    "tests/data/simulation/real_keys_h200_torch2.13.json": _GPU,
    "torchrun --nproc-per-node 8 -m build_tools tune problems.json --out tuned/": _GPU,
    "python -m build_tools.problems": _LOWERS,
    "python -m build_tools.problems training fp8 --workers 2": _LOWERS,
    "tlparse trace/*.log -o trace_html --no-browser": "tlparse is no dependency",
    "python -m build_tools carry build_tools/recordings/ --to 2.12 --out carried_by_code/ "
    "--by-code --python 2.11=/opt/torch2.11/bin/python --python 2.12=/opt/torch2.12/bin/python": (
        "needs Pythons of two torches; run by tests/build_tools/test_carry_code.py where they are"
    ),
    "python -m build_tools topup tables/ carried_by_code/ --out topup/ --minutes 30": _GPU,
}

ASKED_FOR_HELP: Final = re.compile(
    r"python (?:benchmarks/\w+\.py|-m build_tools tune)\b|inductor-tables (?:coverage|collect)$"
)

EXECUTED: Final[Mapping[str, str]] = {
    "README.md": """
        import atexit, contextlib, inductor_tables
        from docs.examples import models
        stack = contextlib.ExitStack()
        atexit.register(stack.close)
        simulation = stack.enter_context(inductor_tables.simulate("NVIDIA H200", codegen=False))
        model, x = models.mlp()
        model, x = simulation.module(model.requires_grad_(False)), simulation.fake(x)
        stack.enter_context(simulation.fake_mode)
    """,
    "docs/coverage.md": "",
    "docs/using.md": "",
}
"""Documents whose Python is run, one block after the other, and what goes before. The Python of the
others is compiled: it needs a process group, a GPU, or models and stores that are the reader's."""


@dataclass(frozen=True)
class Fence:
    """A fenced block: its tag and its text, without indentation."""

    tag: str
    body: str


def text_of(document: str) -> str:
    """Return a document's text."""
    return (ROOT / document).read_text(encoding="utf-8")


def fences(text: str) -> list[Fence]:
    """Return the fenced blocks of a document."""
    return [Fence(m["tag"], textwrap.dedent(m["body"])) for m in _FENCE.finditer(text)]


def is_shell(fence: Fence) -> bool:
    """Whether a fence holds command lines."""
    return fence.tag == "bash" or (not fence.tag and bool(_BEGINS.match(fence.body)))


def shell_lines(fence: Fence) -> list[str]:
    """Return the command lines of a shell fence, without comments."""
    lines = re.sub(r"\s*\\\n\s*", " ", fence.body).splitlines()
    return [bare for line in lines if (bare := re.sub(r"(^|\s+)#\s.*", "", line).strip())]


def inline_commands(text: str) -> list[str]:
    """Return the commands in inline code; a line break in one is a blank."""
    found = (" ".join(code.split()) for code in _INLINE.findall(_FENCE.sub("", text)))
    return [code for code in found if _BEGINS.match(code)]


def groups(text: str) -> list[list[str]]:
    """Return a document's commands, once each; those of a fence share a shell."""
    listed = [shell_lines(f) for f in fences(text) if is_shell(f)]
    in_fences = {line for lines in listed for line in lines}
    inline = dict.fromkeys(c for c in inline_commands(text) if c not in in_fences)
    return [*listed, *([command] for command in inline)]


def runnable(command: str) -> str:
    """Return what is run for a command."""
    if ASKED_FOR_HELP.match(command):
        return f"{command} --help"
    if command.startswith("python -m pytest"):
        return f"{command} --collect-only -q -p no:cacheprovider"
    return command


def python_of(text: str) -> list[str]:
    """Return the Python blocks of a document."""
    return [fence.body for fence in fences(text) if fence.tag == "python"]


# --- what the documents hold ------------------------------------------------------------


def test_the_documents_are_there() -> None:
    """A rule that finds nothing would pass every test below."""
    assert {"docs/using.md", "docs/coverage.md", "docs/production.md"} <= {*DOCUMENTS}
    assert sum(len(groups(text_of(d))) for d in DOCUMENTS) > 30


@pytest.mark.parametrize("document", DOCUMENTS)
def test_fences_are_of_known_kinds(document: str) -> None:
    """A fence with another tag would escape the rules above; so would one that is not closed."""
    text = text_of(document)
    assert {fence.tag for fence in fences(text)} <= TAGS
    assert text.count("```") == 2 * len(fences(text))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_command_hides_in_another_fence(document: str) -> None:
    """What is no shell fence holds no line that begins like a command."""
    others = [f for f in fences(text_of(document)) if not is_shell(f) and f.tag != "python"]
    assert not [line for f in others for line in f.body.splitlines() if _BEGINS.match(line)]


def test_what_is_not_run_is_still_in_the_documents() -> None:
    """An entry of ``NOT_RUN`` or ``EXECUTED`` that no document has is stale."""
    commands = {c for d in DOCUMENTS for lines in groups(text_of(d)) for c in lines}
    assert not {*NOT_RUN} - commands
    assert all(python_of(text_of(document)) for document in EXECUTED)


def test_extras_exist() -> None:
    """What the documents install has the extras that they name."""
    tomllib = pytest.importorskip("tomllib", reason="it came with Python 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"(?:inductor-tables|\.)\[([\w,]+)\]", "".join(map(text_of, DOCUMENTS)))
    assert {extra for names in named for extra in names.split(",")} <= {
        *project["optional-dependencies"]
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    """Relative links name files of the tree, and their anchors headings."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", _FENCE.sub("", text_of(document))):
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}
            assert anchor in slugs, target


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("```bash\na b  # why\nc \\\n  d\n```\n", [["a b", "c d"]]),
        ("- x\n\n  ```bash\n  a\n  ```\n", [["a"]]),
        ("```\npython -m build_tools check\n```\n", [["python -m build_tools check"]]),
        ("```\nkey = value\n```\n", []),
        ("say `inductor-tables\nlist` and `list`", [["inductor-tables list"]]),
        ("`A=1 python train.py`, `A=1`, `nox`", [["A=1 python train.py"], ["nox"]]),
        ("`python benchmarks/x.py --y` `python`", [["python benchmarks/x.py --y"]]),
    ],
)
def test_commands_are_found(text: str, commands: list[list[str]]) -> None:
    """Fences with and without a tag, indented ones, comments, continued lines, inline code."""
    assert groups(text) == commands


# --- running them -----------------------------------------------------------------------

TRAIN: Final = '''
"""Stands for the reader's program: compiles a model without naming inductor-tables' settings."""

import inductor_tables
from docs.examples import models

with inductor_tables.simulate("NVIDIA H200", codegen=False) as simulation:
    model, x = models.odd()
    simulation.compile(simulation.module(model), simulation.fake(x))
'''

_LINKED: Final = ("benchmarks", "docs", "pyproject.toml", "tests")
_RECORDING: Final = "h200_torch2.13.0_decoder_16.json"
_BUILD: Final = (sys.executable, "-m", "build_tools", "build", "dumps/", "--table-version", "1.0")
_LIMIT_S: Final = 240
_SERIES: Final = "2.13"


def make_stage(stage: Path) -> None:
    """Make what the documents' commands are run in.

    The recordings, and the tables that are built of them, are small, since they are compiled.
    """
    stage.mkdir()
    for name in _LINKED:
        (stage / name).symlink_to(ROOT / name)
    (stage / "train.py").write_text(TRAIN, encoding="utf-8")
    unwanted = shutil.ignore_patterns("__pycache__", "recordings")
    shutil.copytree(ROOT / "build_tools", stage / "build_tools", ignore=unwanted)
    dump = shortened((ROOT / "build_tools/recordings" / _RECORDING).read_text("utf-8"), keys=2)
    for place in ("build_tools/recordings/1.json", "dumps/1.json", "tuned/tuned_1.json"):
        (stage / place).parent.mkdir(exist_ok=True)
        (stage / place).write_text(dump, encoding="utf-8")
    (stage / "misses").mkdir()
    missed = problems.problem_from_key(sorted(json.loads(dump))[0], count=1, origins=["x.py:up"])
    problems.write(stage / "misses" / "inductor_problems_1.json", [missed])
    for tables in ("tables", "my_tables"):
        subprocess.run([*_BUILD, "--out", tables], cwd=stage, check=True, stdout=subprocess.DEVNULL)
    for tables in ("OLD_TABLES", "DIR"):
        shutil.copytree(stage / "my_tables", stage / tables)


def shortened(dump: str, *, keys: int) -> str:
    """Return a dump with its first keys, and of each the fastest choice."""
    plain = json.loads(dump)
    head = plain.pop("inductor-tables")
    kept = sorted(plain)[:keys]
    for name in ("ranks", "timings_ns"):
        head[name] = {key: head[name][key][:1] for key in kept}
    return json.dumps({"inductor-tables": head, **{key: plain[key][:1] for key in kept}})


@dataclass(frozen=True)
class Ran:
    """What became of a command: its exit status, None if it was not reached, and its output."""

    command: str
    status: int | None
    output: str


def run_document(document: str, stage: Path) -> list[Ran]:
    """Run a document's commands and then its Python, in their order."""
    listed = [[c for c in lines if c not in NOT_RUN] for lines in groups(text_of(document))]
    if document in EXECUTED:
        blocks = [textwrap.dedent(EXECUTED[document]), *python_of(text_of(document))]
        (stage / "blocks.py").write_text("\n".join(blocks), encoding="utf-8")
        listed.append(["python blocks.py"])
    commands = [command for lines in listed for command in lines]
    (stage / "commands.sh").write_text("\n".join(_script(listed)), encoding="utf-8")
    end = ""
    try:
        subprocess.run(
            ["bash", "commands.sh"], cwd=stage, env=_environment(stage), timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        end = f"\nstopped after {_LIMIT_S} s"
    return [_ran(stage, number, command, end) for number, command in enumerate(commands)]


def _script(listed: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return lines of bash: each group in a shell of its own, each command's end on record."""
    number = 0
    for lines in listed:
        yield "("
        for command in lines:
            yield f"{{ {runnable(command)}\n}} >output_{number} 2>&1; echo $? >status_{number}"
            number += 1
        yield ":)"


def _environment(stage: Path) -> dict[str, str]:
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("INDUCTOR_TABLES", "TORCH"))}
    return {
        **ours,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(stage),
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "TORCHINDUCTOR_CACHE_DIR": str(stage / "inductor_cache"),
        "XDG_CACHE_HOME": str(stage / "cache"),
    }


def _ran(stage: Path, number: int, command: str, end: str) -> Ran:
    status, output = (stage / f"{name}_{number}" for name in ("status", "output"))
    return Ran(
        command=command,
        status=int(status.read_text()) if status.exists() else None,
        output=(output.read_text("utf-8", "replace") if output.exists() else "") + end,
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[list[Ran]]]]:
    """Run all documents, two at a time."""
    if not torch.__version__.startswith(f"{_SERIES}."):
        pytest.skip(f"the documents' commands are for torch {_SERIES}")
    place = tmp_path_factory.mktemp("documents")
    make_stage(place / "stage")
    with ThreadPoolExecutor(max_workers=2) as pool:

        def start(document: str) -> Future[list[Ran]]:
            own = place / document.replace("/", "_")
            shutil.copytree(place / "stage", own, symlinks=True)
            return pool.submit(run_document, document, own)

        yield {document: start(document) for document in DOCUMENTS}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_and_python_run(document: str, running: Mapping[str, Future[list[Ran]]]) -> None:
    """Every command of a document that can run here ends well."""
    failed = [ran for ran in running[document].result() if ran.status != 0]
    assert not failed, "\n".join(
        f"{ran.command}\nexit status {ran.status}\n{ran.output[-3000:]}" for ran in failed
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_compiles(document: str) -> None:
    """What is not run is Python at least."""
    for block in python_of(text_of(document)):
        compile(block, document, "exec")


def test_a_failing_command_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses belong to their commands; one that exits the shell leaves the next unreached."""
    text = "```bash\nfalse\ntrue\nexit 3\ntrue\n```\n"
    monkeypatch.setattr(sys.modules[__name__], "text_of", lambda _: text)
    found = run_document("x.md", tmp_path)
    assert [ran.status for ran in found] == [1, 0, None, None]
