"""What is installed: the wheel, the sdist, and an editable install, built from a copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any, Final

import pytest

from inductor_tables import __version__
from inductor_tables.table import Table
from inductor_tables.versions import series_order

ROOT: Final = Path(__file__).resolve().parent.parent
NAME: Final = f"inductor_tables-{__version__}"
EPOCH: Final = "1790000000"

NOT_COPIED: Final = (
    "__pycache__",
    "*.egg-info",
    ".[!c]*",  # all that is hidden but .ci: environments of nox are as large as they are many
    "build",
    "dist",
)

PIP_INSTALL: Final = (
    sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    not (ROOT / "inductor_tables").is_dir(), reason="the source tree is not here to be built"
)

SHOW_TABLES: Final = """
import importlib.util, json
import inductor_tables
from inductor_tables.resources import packaged_tables
print(json.dumps({
    "file": inductor_tables.__file__,
    "tables": [[series, folder, len(table)] for series, folder, table in packaged_tables()],
    "modules": [name for name in ("tables", "build_tools") if importlib.util.find_spec(name)],
}))
"""


def copy_source(to: Path) -> Path:
    """Copy the source tree, without what is built or cached."""
    return Path(shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(*NOT_COPIED)))


def build(source: Path, out: Path) -> None:
    """Build sdist and wheel with this environment's setuptools; nothing is downloaded."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel"]
    done = subprocess.run(
        [*command, "--outdir", str(out), str(source)],
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree."""
    return copy_source(tmp_path_factory.mktemp("source") / "tree")


@pytest.fixture(scope="module")
def dist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist."""
    out = tmp_path_factory.mktemp("dist")
    build(source, out)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """The wheel, which is for every platform."""
    return dist / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="module")
def in_wheel(wheel: Path) -> set[str]:
    """Names of the wheel's files."""
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if not name.endswith("/")}


def files_of(source: Path, directory: str) -> set[str]:
    """Return the files below a directory of a source tree, relative to the tree."""
    found = (path for path in (source / directory).rglob("*") if path.is_file())
    return {path.relative_to(source).as_posix() for path in found}


def table_counts(source: Path) -> list[list[object]]:
    """Return series, folder and number of keys of every table of a source tree."""
    paths = sorted(
        (source / "tables").glob("*/*/gemm.msgpack"),
        key=lambda path: (series_order(path.parts[-3]), path.parts[-2]),
    )
    return [[path.parts[-3], path.parts[-2], len(Table.open(path))] for path in paths]


def metadata_of(wheel: Path) -> Message:
    """Return the wheel's METADATA."""
    with zipfile.ZipFile(wheel) as opened:
        return BytesParser().parsebytes(opened.read(f"{NAME}.dist-info/METADATA"))


def tables_seen(cwd: Path, *folders: Path, setup: str = "") -> dict[str, Any]:
    """Return what a bare interpreter finds as inductor_tables on sys.path, and its tables.

    It runs no ``.pth`` file, so that no install of this environment is seen.
    """
    paths = [*map(str, folders), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{setup}\nimport sys; sys.path += {paths}\n{SHOW_TABLES}"],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_wheel_holds_the_runtime_and_every_table(in_wheel: set[str], source: Path) -> None:
    """The wheel holds every module, every table as inductor_tables.tables, and py.typed."""
    tables = {f"inductor_tables/{name}" for name in files_of(source, "tables")}
    expected = files_of(source, "inductor_tables") | tables
    metadata = {name for name in in_wheel if name.startswith(f"{NAME}.dist-info/")}
    assert in_wheel - metadata == expected
    assert "inductor_tables/py.typed" in in_wheel


def test_tables_are_packaged(in_wheel: set[str]) -> None:
    """There is at least one table, each in a folder of its series and arch."""
    tables = {name for name in in_wheel if name.endswith(".msgpack")}
    assert tables
    assert all(name.split("/")[:2] == ["inductor_tables", "tables"] for name in tables)
    assert all(len(name.split("/")) == 5 for name in tables)


def test_wheel_installs_one_package(in_wheel: set[str]) -> None:
    """Nothing else is importable: no build tools, no tests, no top-level ``tables``."""
    assert {name.split("/")[0] for name in in_wheel} == {"inductor_tables", f"{NAME}.dist-info"}


def test_sdist_holds_all(dist: Path, source: Path) -> None:
    """The sdist holds what is needed to build, check and test, and nothing that is cached."""
    with tarfile.open(dist / f"{NAME}.tar.gz") as opened:
        names = {member.name.removeprefix(f"{NAME}/") for member in opened if member.isfile()}
    trees = ("inductor_tables", "tables", "build_tools", "tests", "docs", "benchmarks", ".ci")
    expected = set[str]().union(*(files_of(source, tree) for tree in trees)) | {
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "MANIFEST.in",
    }
    assert expected - names == set()
    generated = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert names - expected - generated <= {"noxfile.py", ".gitignore"}


def test_entry_points(wheel: Path) -> None:
    """The wheel installs the command, what torch and vLLM call at their start, and no more."""
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert text.split("\n") == [
        "[console_scripts]",
        "inductor-tables = inductor_tables.__main__:main",
        "",
        "[torch.backends]",
        "inductor_tables = inductor_tables.autoload:autoload",
        "",
        "[vllm.general_plugins]",
        "inductor_tables = inductor_tables.autoload:autoload",
        "",
    ]


def test_metadata(wheel: Path) -> None:
    """Name, version, license, Python and the dependencies are as documented."""
    metadata = metadata_of(wheel)
    assert metadata["Name"] == "inductor-tables"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.10"
    requires = metadata.get_all("Requires-Dist", [])
    assert sorted(r for r in requires if "extra ==" not in r) == [
        "msgpack>=1.0.5",
        "packaging>=22",
        "torch>=2.10",
    ]
    extras = {"browser", "build", "cli", "demo", "huggingface", "lint", "test"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras


def test_builds_are_identical(dist: Path, tmp_path: Path) -> None:
    """Another copy of the tree gives the same bytes under the same SOURCE_DATE_EPOCH."""
    build(copy_source(tmp_path / "elsewhere" / "tree"), tmp_path / "dist")
    wheel = f"{NAME}-py3-none-any.whl"
    assert (tmp_path / "dist" / wheel).read_bytes() == (dist / wheel).read_bytes()


def test_wheel_from_sdist_is_the_same(dist: Path, wheel: Path, tmp_path: Path) -> None:
    """The sdist builds the wheel's files again."""
    with tarfile.open(dist / f"{NAME}.tar.gz") as opened:
        opened.extractall(tmp_path, filter="data")
    build(tmp_path / NAME, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(tmp_path / "dist" / wheel.name) as other:
        assert {i.filename: i.CRC for i in other.infolist() if "RECORD" not in i.filename} == {
            i.filename: i.CRC for i in one.infolist() if "RECORD" not in i.filename
        }


def test_tables_of_a_zipped_wheel(wheel: Path, source: Path, tmp_path: Path) -> None:
    """Every table is found and read from a wheel that lies zipped on sys.path."""
    found = tables_seen(tmp_path, wheel)
    assert found["file"].startswith(f"{wheel}/")
    assert found["tables"] == table_counts(source)


def test_tables_of_an_installed_wheel(wheel: Path, source: Path, tmp_path: Path) -> None:
    """Every table is found in an installed wheel, and ``tables`` is no module of its own."""
    site = tmp_path / "site"
    subprocess.run([*PIP_INSTALL, "--target", str(site), str(wheel)], check=True)
    found = tables_seen(tmp_path, site)
    assert found["file"].startswith(f"{site}/")
    assert found["tables"] == table_counts(source)
    assert found["modules"] == []


def test_tables_of_an_editable_install(source: Path, tmp_path: Path) -> None:
    """Every table is found in an editable install, and ``tables`` is no module of its own."""
    site = tmp_path / "site"
    editable = ["--no-build-isolation", "--editable", str(source)]
    subprocess.run([*PIP_INSTALL, "--target", str(site), *editable], check=True)
    found = tables_seen(tmp_path, setup=f"import site; site.addsitedir({str(site)!r})")
    assert found["file"].startswith(f"{source}/")
    assert found["tables"] == table_counts(source)
    assert found["modules"] == []
