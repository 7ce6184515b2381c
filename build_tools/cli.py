"""The command line: ``python -m build_tools build | check | diff | hashes | ...``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from packaging.version import InvalidVersion, Version

from build_tools import held, show
from build_tools.build import Built, build, write
from build_tools.carry.command import carry_command
from build_tools.carry.topup_command import topup_command
from build_tools.check import check_directory
from build_tools.compile_options import compile_options, compiled
from build_tools.diff import diff_paths
from build_tools.files import problem_files
from build_tools.hashes import (
    COMMITTED,
    TemplateHashes,
    as_data,
    installed_hashes,
    read_committed,
    write_committed,
)
from build_tools.people import errors_for_people, print_grids, read_dumps, torch_named
from build_tools.place import Places
from build_tools.tune.command import tune_command
from inductor_tables import problems
from inductor_tables.terminal import print_json

PACKAGED: Final = Path(__file__).resolve().parent.parent / "tables"
"""The tables of this source tree."""


def _pep440(_context: click.Context, _option: click.Parameter, value: str) -> str:
    try:
        return str(Version(value))
    except InvalidVersion as error:
        raise click.BadParameter(f"{value!r} is not a PEP 440 version such as 1.0") from error


@click.group()
def main() -> None:
    """Build, check and compare the tables of inductor-tables."""


@main.command("build")
@click.argument("dumps", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="Directory of tables to write into.")  # fmt: skip
@click.option("--table-version", required=True, callback=_pep440,
              help="Version of the data, PEP 440.")  # fmt: skip
@click.option("--topk", type=click.IntRange(min=1),
              help="Keep the K fastest choices of each problem; default: all.")  # fmt: skip
@click.option("--proved", is_flag=True, help="Take only what the tuner proved.")
@click.option("--torch", callback=torch_named, help="Torch of dumps that do not say, e.g. 2.13.")
@click.option("--arch", help="gcnArchName for keys without a device; default: they stay without.")
@click.option("--serves-base-arch", "base_archs", multiple=True, metavar="GFX",
              help="AMD arch without flags (gfx942) whose table serves all flags.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@errors_for_people
def build_command(
    *,
    dumps: Sequence[Path],
    out: Path,
    table_version: str,
    topk: int | None,
    proved: bool,
    torch: str | None,
    arch: str | None,
    base_archs: Sequence[str],
    as_json: bool,
) -> None:
    """Merge DUMPS (files, or directories of them) into tables; nothing is written on an error."""
    places = Places(torch=torch, arch=arch, base_archs=base_archs)
    built = build(
        read_dumps(dumps), table_version=table_version, topk=topk, proved=proved, places=places
    )
    left = write(built.tables, out)
    if as_json:
        print_json(_built_data(built, left))
        return
    print_grids(show.dumps_grid(built), show.tables_grid(built))
    for note in show.build_notes(built, left):
        click.echo(note, err=True)


@main.command("check")
@click.argument("tables_dir", default=PACKAGED,
                type=click.Path(exists=True, file_okay=False, path_type=Path))  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@compile_options
@click.pass_context
@errors_for_people
def check_command(
    context: click.Context, /, tables_dir: Path, as_json: bool, **compiling: Any
) -> None:
    """Check all tables below TABLES_DIR (this source tree's); exit with 1 if any fails."""
    report, kernels = check_directory(tables_dir), compiled(tables_dir, compiling)
    ok = report.ok and (kernels is None or kernels.ok)
    if as_json:
        added = {"ok": ok, "compile": kernels.as_data()} if kernels else {}
        print_json(report.as_data() | added)
    else:
        print_grids(show.check_grid(report), *([show.compile_grid(kernels)] if kernels else []))
        for line in show.check_problems(report):
            click.echo(line)
        for line in show.compile_findings(kernels) if kernels else ():
            click.echo(line)
    context.exit(0 if ok else 1)


@main.command("diff")
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown for the changelog.")
@click.option("--json", "form", flag_value="json", help="Print everything as JSON.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=0),
              help="Most items of one kind to print (not with --json).")  # fmt: skip
@errors_for_people
def diff_command(old: Path, new: Path, form: str | None, limit: int) -> None:
    """Say what changed from OLD to NEW, two tables or two directories of them."""
    diffs = diff_paths(old, new)
    if form == "json":
        print_json([diff.as_data() for diff in diffs])
        return
    lines = show.diff_markdown if form == "markdown" else show.diff_text
    for line in lines(diffs, limit):
        click.echo(line)


@main.command("hashes")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@click.option("--write", "save", is_flag=True, help="Put them into the committed data.")
@errors_for_people
def hashes_command(as_json: bool, save: bool) -> None:
    """List the templates of the installed torch with their hashes."""
    hashes = installed_hashes()
    if as_json:
        print_json({"series": hashes.series, **as_data(hashes)})
    else:
        print_grids(show.hashes_grid(hashes))
    if save:
        before = read_committed().get(hashes.series) if COMMITTED.exists() else None
        write_committed(hashes)
        click.echo(f"{COMMITTED}: torch {hashes.series}: {_changes(before, hashes)}", err=True)


@main.command("problems")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("--held", "tables", multiple=True, type=click.Path(exists=True, path_type=Path),
              help="Tables or dumps: say how many problems of each model they hold, and write "
              "only the others.")  # fmt: skip
@errors_for_people
def problems_command(files: Sequence[Path], out: Path | None, tables: Sequence[Path]) -> None:
    """Merge FILES of problems (or directories with the misses of a fleet) into one."""
    if out is None and not tables:
        raise click.UsageError("give --out, --held, or both")
    named = problem_files(files)
    merged = problems.merge(problem for file in named for problem in problems.read(file))
    what = "problems"
    if tables:
        known, merged = held.split(merged, held.read_held(tables))
        print_grids(show.held_grid(held.by_model(known, merged)))
        what = f"problems that are not held, beside {len(known)} that are,"
    if out is not None:
        problems.write(out, merged)
    click.echo(f"{out or 'not written'}: {len(merged)} {what} from {len(named)} files")


main.add_command(tune_command)
main.add_command(carry_command)
main.add_command(topup_command)


def _built_data(built: Built, left: Sequence[Path]) -> dict[str, Any]:
    return {
        "dumps": [
            {
                "dump": report.resource,
                "rows": report.rows,
                "kept": report.kept,
                "unordered": report.unordered,
                "merged": report.merged,
                "dropped": dict(sorted(report.dropped.items())),
            }
            for report in built.reports
        ],
        "tables": [
            {
                "path": str(one.path),
                "arch": one.table.header.arch,
                "torch_series": one.table.header.torch_series,
                "table_version": one.table.header.table_version,
                "keys": one.table.header.key_count,
                "entries": one.table.header.entry_count,
                "bytes": len(one.data),
                "digest": one.table.digest,
            }
            for one in built.tables
        ],
        "left": [str(path) for path in left],
    }


def _changes(before: TemplateHashes | None, after: TemplateHashes) -> str:
    if before is None:
        return f"{len(after.templates)} templates, new"
    old, new = before.templates, after.templates
    changed = sum(old[name] != new[name] for name in old.keys() & new.keys())
    return (
        f"{before.version} -> {after.version}, {len(new.keys() - old.keys())} templates added, "
        f"{len(old.keys() - new.keys())} removed, {changed} changed"
    )
