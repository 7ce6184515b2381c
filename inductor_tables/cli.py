"""The command line: ``inductor-tables collect | coverage | demo | list | show | status``."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from inductor_tables import __version__, config, host, resources
from inductor_tables.errors import InvalidKeyError, UnsupportedTorchError
from inductor_tables.keys import ParsedKey, TensorKey, parse_key
from inductor_tables.parameters import kernel_text
from inductor_tables.schema import Entry, Proof
from inductor_tables.table import Table
from inductor_tables.terminal import (
    errors_for_people,
    import_torch,
    json_option,
    new_console,
    new_grid,
    print_json,
)
from inductor_tables.versions import NEWEST_KNOWN_SERIES, TorchSeries, torch_series

SHOWN: Final = 50
"""How many keys ``show`` prints for people unless told otherwise."""

_INCUMBENTS: Final = {"aten": "ATen", "host": "host", "previous": "before"}
"""How ``show`` names what an entry was measured against."""

_LATER: Final[Mapping[str, str]] = {
    "collect": "collect_command",
    "coverage": "coverage_command",
}
"""Commands of :mod:`inductor_tables.analysis.commands`, which is imported for these only."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_LATER])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _LATER:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module("inductor_tables.analysis.commands")
        found: click.Command = getattr(module, _LATER[cmd_name])
        return found


@click.group(cls=_Commands)
@click.version_option(__version__, prog_name="inductor-tables")
def commands() -> None:
    """GEMM kernels for torch.compile from tables instead of autotuning."""


# --- demo -------------------------------------------------------------------------------


@commands.command("demo")
@json_option
@errors_for_people
def demo_command(as_json: bool) -> None:
    """Compile a transformer block with a packaged table.

    For real, with and without the table, on a GPU that the tables know; elsewhere for a
    simulated NVIDIA H200, which compiles and runs nothing.
    """
    import_torch()
    from inductor_tables.demo import COMPILES, run_demo

    console = new_console()
    with Console(stderr=True).status("compiling in fresh processes ..."):
        found = run_demo()
    if as_json:
        print_json(found)
        return
    console.print(*_demo_head(found), sep="\n")
    console.print(_gemms_grid(found["gemms"]))
    console.print(*_demo_foot(found), sep="\n")
    if found["compiles"]:
        console.print(_compiles_grid(found["compiles"], COMPILES))


def _demo_head(found: Mapping[str, Any]) -> Iterable[Text]:
    yield Text(
        f"A Llama-like transformer block, bf16, on {_device(found)}, torch {found['torch']}, "
        f"triton {found['triton']}, max_autotune_gemm"
    )
    table = found["table"]
    if table is None:
        yield Text(
            f"No table is packaged for {found['device']} on torch {torch_series(found['torch'])} "
            f"(packaged torch series: {', '.join(resources.packaged_series()) or 'none'}), so "
            "that every GEMM misses and compiles as without inductor-tables"
        )
    else:
        yield Text(
            f"Table {table['resource']}, version {table['table_version']}, {table['keys']} keys, "
            f"digest {table['digest'][:12]}"
        )


def _device(found: Mapping[str, Any]) -> str:
    return f"a simulated {found['device']}" if found["simulated"] else str(found["device"])


def _gemms_grid(gemms: Sequence[Mapping[str, Any]]) -> Grid:
    grid = new_grid("layers", "lookup key", "table", "kernel", "autotunes")
    for gemm in gemms:
        grid.add_row(
            gemm["layers"],
            Text(gemm["key"]),
            "[green]hit[/]" if gemm["hit"] else "[yellow]miss[/]",
            Text(kernel_text(gemm["template_id"], gemm["params"]) if gemm["template_id"] else "-"),
            _autotunes(gemm),
        )
    return grid


def _autotunes(gemm: Mapping[str, Any]) -> str:
    if not gemm["autotuned"]:
        return "no"
    return "yes" if gemm["choices"] is None else f"yes, {gemm['choices']} choices"


def _demo_foot(found: Mapping[str, Any]) -> Iterable[Text]:
    yield Text(f"{found['hits']} GEMMs from the table, {found['misses']} not in it")
    if found["simulated"]:
        yield Text(
            "No GPU that the tables know is visible: kernels were chosen, nothing was compiled "
            "for the GPU or run, so there are no times"
        )


def _compiles_grid(compiles: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> Grid:
    numbers = ("compile s", "step µs", "off from eager")
    grid = new_grid("cold caches, a process each", *numbers, numbers=numbers)
    for name, measured in compiles.items():
        grid.add_row(
            titles[name],
            f"{measured['compile_s']:.1f}",
            f"{measured['step_us']:.1f}",
            f"{measured['error']:.1e}",
        )
        if "miss_compile_s" in measured:
            seconds = measured["miss_compile_s"]
            grid.add_row("  then the layer that misses, autotuned", f"{seconds:.1f}", "", "")
    return grid


# --- status -----------------------------------------------------------------------------


@commands.command("status")
@json_option
@errors_for_people
def status_command(as_json: bool) -> None:
    """Say what enable() would use here."""
    import_torch()  # only an imported torch is asked for visible GPUs
    found = _status(host.installed_series())
    if as_json:
        print_json(found)
        return
    console = new_console()
    console.print(Text(f"inductor-tables {__version__}, torch {found['torch']}"), soft_wrap=True)
    packaged = ", ".join(found["packaged_series"]) or "none"
    console.print(Text(f"packaged tables are for torch {packaged}"), soft_wrap=True)
    console.print(_devices_grid(found["devices"]) if found["devices"] else "no GPU is visible")
    console.print(_settings_grid(found["settings"]))


def _status(series: TorchSeries) -> dict[str, Any]:
    return {
        "version": __version__,
        "torch": host.installed_torch(),
        "torch_series": series,
        "packaged_series": list(resources.packaged_series()),
        "devices": [
            {
                "index": index,
                "arch": arch,
                "tables": [
                    {"level": found.level, **_table_data(found.table)}
                    for found in resources.packaged_candidates(series, arch)
                ],
            }
            for index, arch in enumerate(host.visible_archs())
        ],
        "settings": {name: getattr(config, name) for name in config.NAMES},
    }


def _devices_grid(devices: Sequence[Mapping[str, Any]]) -> Grid:
    grid = new_grid("GPU", "served by", "match", "version", "digest", "keys", numbers=["keys"])
    for device in devices:
        name = f"{device['index']}: {device['arch']}"
        if not device["tables"]:
            grid.add_row(Text(name), "no table: stock behaviour", "", "", "", "")
        for table in device["tables"]:
            texts = (name, table["resource"], table["level"], table["table_version"])
            grid.add_row(*map(Text, texts), table["digest"][:12], str(table["keys"]))
    return grid


def _settings_grid(settings: Mapping[str, Any]) -> Grid:
    grid = new_grid("setting (inductor_tables.config)", "value", "environment variable")
    for name, value in settings.items():
        grid.add_row(name, Text(repr(value)), config.ENV_PREFIX + name.upper())
    return grid


# --- list -------------------------------------------------------------------------------


@commands.command("list")
@json_option
@errors_for_people
def list_command(as_json: bool) -> None:
    """List the packaged tables."""
    found = [
        {"folder": folder, **_table_data(table), "bytes": table.size}
        for _, folder, table in resources.packaged_tables()
    ]
    if as_json:
        print_json(found)
    elif found:
        new_console().print(_list_grid(found))
    else:
        click.echo("no tables are packaged")


def _table_data(table: Table) -> dict[str, Any]:
    header = table.header
    return {
        "resource": table.resource,
        "torch_series": header.torch_series,
        "arch": header.arch,
        "serves_base_arch": header.serves_base_arch,
        "table_version": header.table_version,
        "keys": header.key_count,
        "entries": header.entry_count,
        "recorded_with": {name: list(found) for name, found in header.recorded_with.items()},
        "sm_counts": list(header.sm_counts),
        "digest": table.digest,
    }


def _list_grid(found: Sequence[Mapping[str, Any]]) -> Grid:
    grid = new_grid(
        "torch", "arch (folder)", "version", "recorded with", "SMs", "digest",
        "keys", "entries", "bytes", numbers=("keys", "entries", "bytes"),
    )  # fmt: skip
    for table in found:
        recorded = table["recorded_with"]
        with_torch = [f"torch {version}" for version in recorded["torch"]] or ["torch unknown"]
        days = dict.fromkeys(date[:10] for date in recorded["date"])
        texts = (
            table["torch_series"],
            f"{table['arch'] or 'any device'} ({table['folder']})",
            table["table_version"],
            ", ".join([*with_torch, *days]),
            ", ".join(map(str, table["sm_counts"])) or "?",
            table["digest"][:12],
        )
        counts = (table["keys"], table["entries"], table["bytes"])
        grid.add_row(*map(Text, texts), *map(str, counts))
    return grid


# --- show -------------------------------------------------------------------------------


@commands.command("show")
@click.argument("arch")
@click.option("--torch", "series", metavar="SERIES",
              help="Torch series; default: the installed one, else the newest.")  # fmt: skip
@click.option("--op", metavar="OP", help="Only keys of this op, e.g. addmm.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N",
              help=f"At most N keys; default: {SHOWN}, with --json all.")  # fmt: skip
@json_option
@errors_for_people
def show_command(
    arch: str, series: str | None, op: str | None, limit: int | None, as_json: bool
) -> None:
    """Show the entries of the table of ARCH, a gcnArchName or a folder's name."""
    table = _pick_series(_tables_of(arch), arch, series)
    keys = _keys_of(table, op)
    wanted = limit or (len(keys) if as_json else SHOWN)
    rows = [_row(key, gemm, entry) for gemm, key in keys[:wanted] for entry in table.lookup(key)]
    if as_json:
        print_json({**_table_data(table), "keys_found": len(keys), "rows": rows})
        return
    new_console().print(_rows_grid(rows))
    if len(keys) > wanted:
        click.echo(f"{wanted} of {len(keys)} keys; --limit {len(keys)} shows all")
    elif not keys:
        click.echo(f"no keys of the op {op!r}" if op else "the table is empty")


def _tables_of(arch: str) -> dict[TorchSeries, Table]:
    """Return the tables of an arch or folder by series.

    Raises:
        click.BadParameter: there are none.
    """
    known: dict[str, None] = {}
    found = {}
    for series, folder, table in resources.packaged_tables():
        if arch in {table.header.arch, folder}:
            found[series] = table
        known[f"{table.header.arch or 'any device'!r} ({folder})"] = None
    if not found:
        listed = ", ".join(known) or "none"
        raise click.BadParameter(
            f"no table is packaged for {arch!r}; packaged: {listed}", param_hint="ARCH"
        )
    return found


def _pick_series(tables: Mapping[TorchSeries, Table], arch: str, series: str | None) -> Table:
    if series is None:
        return tables.get(_installed_series()) or list(tables.values())[-1]
    try:
        return tables[torch_series(series)]
    except (KeyError, ValueError):
        raise click.BadParameter(
            f"no table of {arch!r} is packaged for torch {series!r}; packaged: {', '.join(tables)}",
            param_hint="--torch",
        ) from None


def _installed_series() -> TorchSeries:
    try:
        return host.installed_series()
    except UnsupportedTorchError:  # the tables can be read all the same
        return NEWEST_KNOWN_SERIES


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """A key as a matrix product ``batch x (M, K) @ (K, N)``; None where a key is no such thing.

    ``layout`` names the two factors' order in memory: ``row``, ``col`` (transposed) or
    ``strided``.
    """

    op: str | None = None
    batch: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    dtypes: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()


def gemm_of(key: str) -> Gemm:
    """Describe a lookup key; one that cannot be taken apart has nothing but None."""
    try:
        parsed = parse_key(key)
    except InvalidKeyError:
        return Gemm()
    factors = _factors(parsed)
    dtypes = tuple(dict.fromkeys(tensor.dtype for tensor in parsed.inputs))
    if factors is None:
        return Gemm(op=parsed.op_name, dtypes=dtypes)
    left, right = factors
    return Gemm(
        op=parsed.op_name,
        batch=left.size[0] if len(left.size) == 3 else None,
        m=left.size[-2],
        n=right.size[-1],
        k=left.size[-1],
        dtypes=dtypes,
        layout=(_layout(left), _layout(right)),
    )


def _factors(parsed: ParsedKey) -> tuple[TensorKey, TensorKey] | None:
    first = 1 if parsed.op_name in {"addmm", "baddbmm"} else 0  # after what is added
    factors = parsed.inputs[first : first + 2]
    if len(factors) != 2 or any(len(f.size) not in (2, 3) for f in factors):
        return None
    left, right = factors
    return (left, right) if left.size[-1] == right.size[-2] else None


def _layout(tensor: TensorKey) -> str:
    if tensor.stride[-1] == 1:
        return "row"
    return "col" if tensor.stride[-2] == 1 else "strided"


def _keys_of(table: Table, op: str | None) -> list[tuple[Gemm, str]]:
    """Return the keys of an op (None: of all), described, ordered by op and sizes."""
    found = [(gemm_of(key), key) for key in table.keys()]  # noqa: SIM118 - not a dict
    return sorted(((g, key) for g, key in found if op in {None, g.op}), key=_by_sizes)


def _by_sizes(described: tuple[Gemm, str]) -> tuple[str, list[int], str]:
    gemm, key = described
    return gemm.op or "", [size or 0 for size in (gemm.batch, gemm.k, gemm.n, gemm.m)], key


def _row(key: str, gemm: Gemm, entry: Entry) -> dict[str, Any]:
    return {
        "key": key,
        **asdict(gemm),
        "template_id": entry.config.template_id,
        "template_hash": entry.config.template_hash,
        "params": dict(entry.config.params),
        "time_us": entry.time_us,
        "proof": None if entry.proof is None else _proof_data(entry.proof),
        "margin": entry.margin,
        "measured": entry.measured,
        "carried": entry.source.carried,
        "recorded_with_torch": entry.source.torch,
    }


def _proof_data(proof: Proof) -> dict[str, Any]:
    return {
        "spread_us": proof.spread_ns / 1000,
        "incumbents_us": {name: time / 1000 for name, time in proof.incumbents_ns.items()},
        "rounds": proof.rounds,
    }


def _rows_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    proved = ["against µs", "margin"] if any(row["proof"] for row in rows) else []
    grid = new_grid(
        "op", "M", "N", "K", "dtypes", "layout", "kernel", "µs", *proved, "origin",
        numbers=("M", "N", "K", "µs", "margin"),
    )  # fmt: skip
    for row in rows:
        batch = "" if row["batch"] is None else f" ({row['batch']} x)"
        texts = (
            f"{row['op']}{batch}" if row["op"] else row["key"],
            *("-" if row[name] is None else str(row[name]) for name in ("m", "n", "k")),
            " ".join(row["dtypes"]),
            " x ".join(row["layout"]),
            kernel_text(row["template_id"], row["params"]),
            _time_text(row),
            *([_against_text(row), _margin_text(row)] if proved else []),
            "measured" if row["measured"] else _carried_text(row),
        )
        grid.add_row(*map(Text, texts))
    return grid


def _carried_text(row: Mapping[str, Any]) -> str:
    return f"carried from torch {row['recorded_with_torch']} by {row['carried']}"


def _time_text(row: Mapping[str, Any]) -> str:
    time = "-" if row["time_us"] is None else f"{row['time_us']:.1f}"
    return f"{time} ±{row['proof']['spread_us']:.1f}" if row["proof"] else time


def _against_text(row: Mapping[str, Any]) -> str:
    known = row["proof"]["incumbents_us"] if row["proof"] else {}
    return ", ".join(f"{_INCUMBENTS[name]} {time:.1f}" for name, time in known.items()) or "-"


def _margin_text(row: Mapping[str, Any]) -> str:
    return "-" if row["margin"] is None else f"{row['margin']:.1%}"
