"""Places that programs run in: read-only, zipped, without a home, in odd locales and paths."""

from __future__ import annotations

import os
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest
from process_support import HIT, KEY, needs_triton, run, shown, write_table

import inductor_tables

READ_ONLY = """
import sysconfig
read_only = tuple({os.path.realpath(p) for p in [sys.prefix, *sys.argv[1].split("|")]})
writes = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}

def refuse(event, args):
    flags = args[2] if event == "open" and isinstance(args[2], int) else 0
    written = event in writes or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if written and not isinstance(args[0], int):
        if os.path.realpath(os.fsdecode(args[0])).startswith(read_only):
            raise OSError(30, "Read-only file system", args[0])

sys.addaudithook(refuse)
try:
    open(os.path.join(read_only[0], "probe"), "w")
except OSError as error:
    assert error.errno == 30
"""
"""Has the environment and the package refuse writes, also those of root."""

USE = """
import inductor_tables
inductor_tables.enable(sys.argv[1])
lowered = lower()
status = inductor_tables.status()
print(str(status)); status.to_json()
show(lowered=lowered, hits=status.hits, problems=status.problems)
"""

USED = {"lowered": HIT, "hits": 1, "problems": []}

RECORD = """
import inductor_tables
from inductor_tables import activation, host, recorder
from inductor_tables.dumps import read_dump

host.recorded_choice = lambda choice, op_name, *, with_device: host.RecordedChoice(
    key=sys.argv[3], template_id="aten::mm", template_hash=None, params={}
)
with inductor_tables.record(sys.argv[2]) as recording:
    recorder.record_topk_choices({"one": 0.1}, "mm", [], ["one"], dict, {})
keys = []
for given in (sys.argv[1], recording.path, sys.argv[2]):
    inductor_tables.enable(given)
    (found,) = activation.current_activation()._user_candidates()
    keys.append(len(found.table.lookup(sys.argv[3])))
    assert str(inductor_tables.status())
show(keys=keys, problems=inductor_tables.status().problems)
"""
"""Records, then opens a table, what was recorded, and the directory it is in; no torch."""

RECORDED = {"keys": [1, 1, 1], "problems": []}


def _package_folders() -> list[Path]:
    tables = Path(str(files("inductor_tables.tables")))
    return [Path(inductor_tables.__file__).parent, tables]


@needs_triton
def test_a_read_only_installation_without_a_home(tmp_path: Path) -> None:
    """Nothing is written to site-packages or the package, and no home is needed."""
    table = write_table(tmp_path / "table.json")
    folders = "|".join(map(str, _package_folders()))
    script = f"{READ_ONLY}\ndel sys.argv[1]\n{USE}"
    how = {"HOME": None, "USER": None, "LOGNAME": None, "XDG_CACHE_HOME": None}
    cache = {"TORCHINDUCTOR_CACHE_DIR": tmp_path / "cache", "TRITON_CACHE_DIR": tmp_path / "cache"}
    assert shown(script, folders, table, **how, **cache) == USED


@pytest.mark.parametrize("home", [None, "/no/such/home", "/proc", "/dev/null"])
def test_no_home_or_one_that_cannot_be_written(home: str | None, tmp_path: Path) -> None:
    """Recording, opening and enabling ask for no home."""
    table = write_table(tmp_path / "table.json")
    assert shown(RECORD, table, tmp_path / "dumps", KEY, HOME=home) == RECORDED


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a wheel holds it, in one zip file."""
    path = tmp_path_factory.mktemp("zip") / "inductor_tables.whl"
    package, tables = _package_folders()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for root, name in ((package, "inductor_tables"), (tables, "inductor_tables/tables")):
            for file in sorted(p for p in root.rglob("*") if p.is_file()):
                if "__pycache__" not in file.parts:
                    archive.write(file, f"{name}/{file.relative_to(root).as_posix()}")
    return path


def test_a_zipped_wheel(zipped: Path) -> None:
    """On sys.path as it is: the packaged tables are read from inside the zip."""
    script = """
    import inductor_tables
    from inductor_tables import resources
    from inductor_tables.versions import TorchSeries
    assert inductor_tables.__file__.startswith(sys.argv[1]), inductor_tables.__file__
    opened = {}
    for series, folder, table in resources.packaged_tables():
        table.verify()
        opened[f"{series}/{folder}"] = len(table)
        (first, *_) = resources.packaged_candidates(series, table.header.arch)
        assert first.table is table and table.resource.startswith("inductor_tables.tables/")
    show(opened=opened, series=list(resources.packaged_series()))
    """
    found = shown(script, zipped, PYTHONPATH=zipped, cwd=zipped.parent)
    from inductor_tables.resources import packaged_tables

    assert found["opened"] == {
        f"{s}/{folder}": len(table) for s, folder, table in packaged_tables()
    }
    assert found["opened"]


@pytest.mark.slow
@needs_triton
def test_a_zipped_wheel_in_a_lowering(zipped: Path, tmp_path: Path) -> None:
    """The handler, the simulation and the user's own table work from a zip as well."""
    table = write_table(tmp_path / "table.json")
    script = f"{USE}\nassert inductor_tables.__file__.startswith({str(zipped)!r})"
    assert shown(script, table, PYTHONPATH=zipped, cwd=tmp_path) == USED


@pytest.mark.parametrize(
    "name", ["plain", "caf\u00e9", os.fsdecode(b"caf\xe9"), "\U0001f600 %s {x}"]
)
@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LANG": None},
    ],
)
def test_other_locales(locale: dict[str, str | None], name: str, tmp_path: Path) -> None:
    """ASCII only, and names of files that are no text in any encoding."""
    directory = tmp_path / name
    directory.mkdir()
    table = write_table(directory / "table.json")
    found = shown(RECORD, table, directory / "dumps", KEY, **locale)
    assert found == RECORDED


@needs_triton
def test_spaces_and_colons_in_all_paths_and_the_c_locale(tmp_path: Path) -> None:
    """Of the table, the working directory and torch's caches; the table's path is relative.

    Python turns LC_ALL=C into UTF-8. Where it is told not to, torch cannot be compiled with.
    """
    here = tmp_path / "a b: c" / "d;e 'f' \"g\" caf\u00e9"
    write_table(here / "t 1:2" / "my table.json")
    cache = {"TORCHINDUCTOR_CACHE_DIR": here / "ca che", "TRITON_CACHE_DIR": here / "tri ton"}
    table = Path("t 1:2") / "my table.json"
    assert shown(USE, table, cwd=here, LC_ALL="C", **cache) == USED


def test_spaces_and_colons_in_what_is_recorded(tmp_path: Path) -> None:
    """A recording's directory is made and read again, absolute or relative."""
    here = tmp_path / "a b: c"
    write_table(here / "t:1.json")
    assert shown(RECORD, "t:1.json", "du mps: 1", KEY, cwd=here) == RECORDED
    assert shown(RECORD, here / "t:1.json", here / "x: y" / "z", KEY) == RECORDED


@needs_triton
def test_other_visible_devices_after_the_import(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES that changes under our feet changes nothing that is looked up."""
    script = """
    import inductor_tables
    inductor_tables.enable(sys.argv[1])
    import torch
    found = []
    for visible in ("", "0,1", "GPU-no-such-uuid", "nonsense", "-1"):
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
        found.append(inductor_tables.status().enabled)
        torch.compile(torch.add, backend="aot_eager")(torch.ones(2), 1)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    show(lowered=lower(), found=found, problems=inductor_tables.status().problems)
    """
    table = write_table(tmp_path / "table.json")
    found = shown(script, table, CUDA_VISIBLE_DEVICES=None)
    assert found == {"lowered": HIT, "found": [True] * 5, "problems": []}


@needs_triton
def test_imported_and_enabled_in_a_thread(tmp_path: Path) -> None:
    """The thread that enables need be neither the first nor the one that compiles."""
    script = """
    def begin():
        import inductor_tables
        inductor_tables.enable(sys.argv[1])
        import torch

    thread = threading.Thread(target=begin)
    thread.start()
    import inductor_tables
    thread.join()
    found = [lower()]
    thread = threading.Thread(target=lambda: found.append(lower()))
    thread.start()
    thread.join()
    show(found=found, hits=inductor_tables.status().hits)
    """
    table = write_table(tmp_path / "table.json")
    assert shown(script, table) == {"found": [HIT, HIT], "hits": 2}


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "sys.exit(0)",
        "inductor_tables.disable()",
        "del inductor_tables, sys.modules['inductor_tables.activation']",
        "threading.Thread(target=inductor_tables.status).start()",
        "import atexit; atexit.register(inductor_tables.status)",
        "import atexit; atexit.register(inductor_tables.disable)",
    ],
)
def test_the_interpreter_ends_cleanly(ending: str, tmp_path: Path) -> None:
    """Enabled, with tables open and a recorder at hand: not a word on stderr at exit."""
    script = f"""
    import inductor_tables, inductor_tables.recorder
    from inductor_tables import activation, resources
    inductor_tables.enable(sys.argv[1])
    activation.current_activation()._user_candidates()
    tables = list(resources.packaged_tables())
    {ending}
    """
    done = run(script, write_table(tmp_path / "table.json"), options=("-X", "dev", "-W", "error"))
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_open_files_are_not_inherited(tmp_path: Path) -> None:
    """A program that the process starts gets none of the tables' descriptors."""
    script = """
    import subprocess
    from inductor_tables import resources
    tables = list(resources.packaged_tables())
    code = (
        "import os; fds = '/proc/self/fd'; "
        "print(*(os.path.realpath(f'{fds}/{n}') for n in os.listdir(fds)))"
    )
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, close_fds=False).stdout
    show(inherited=[path for path in out.split() if path.endswith(".msgpack")], tables=len(tables))
    """
    found = shown(script)
    assert found["tables"]
    assert not found["inherited"]
