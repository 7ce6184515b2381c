"""The hot path: a look-up with all checks, next to the host's own handler with a dict.

Lowers a decoder on the simulated H200 and, inside its lowering, times both handlers in
turn on every op: ours from the key to checked choices, the host's from the key to the
configurations it found.

    python benchmarks/lookup.py --json

Bars: ``lookup_us_p50`` <= 60 and ``ratio_to_host`` <= 1.2.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import click
import torch
from blocks import Decoder, DecoderSizes, Tokens
from rich.console import Console
from rich.table import Table
from torch._inductor import config as inductor
from torch._inductor.lookup_table import LookupTableChoices

import inductor_tables
from inductor_tables.handler import TableChoices
from inductor_tables.simulation import simulate

Plain = dict[str, list[dict[str, Any]]]


def lower(tokens: int) -> list[Any]:
    """Lower the decoder once and return the simulation's handler calls."""
    with simulate("NVIDIA H200", codegen=False) as sim, torch.no_grad():
        sizes, asked = DecoderSizes(layers=2), Tokens(new=tokens)
        model = sim.module(lambda: Decoder(sizes, asked), dtype=torch.bfloat16)
        sim.compile(model.eval(), sim.zeros(1, tokens, dtype=torch.int64))
        return list(sim.calls)


def table_of(calls: list[Any], entries: int) -> Plain:
    """Make a table that covers the calls: the first Triton choices of each, as recorded."""
    from torch._inductor.kernel.mm import mm_template

    table: Plain = {}
    for call in calls:
        found = [
            {
                "template_id": choice.template_id,
                "template_hash": mm_template.src_hash,
                **choice.params,
            }
            for choice in call.choices
            if choice.template_id == "triton::mm"
        ]
        if found:
            table[call.device_key] = found[:entries]
    return table


class Probe:
    """Times both handlers on the op that is being lowered."""

    def __init__(self, table: Plain, repeats: int) -> None:
        self.table, self.repeats = table, repeats
        self.ours: list[float] = []
        self.hosts: list[float] = []
        self.keys: set[str] = set()

    def __call__(self, handler: TableChoices, kernel_inputs: Any, templates: Any, op: str) -> None:
        """Time a look-up of this op ``repeats`` times with each handler, in turn."""
        host = LookupTableChoices()
        key = handler.make_lookup_key(kernel_inputs, op, True)
        if key not in self.table:
            return
        self.keys.add(key)
        hashes = {t.uid: getattr(t, "src_hash", None) for t in templates}
        uids = list(hashes)
        bases = {t.uid: next(iter(handler.get_ktc(kernel_inputs, t, op)), None) for t in templates}

        def ours() -> None:
            found = handler.lookup_template_configs(kernel_inputs, op, uids, hashes)
            offered = {uid: iter([bases[uid]]) for uid in found}
            assert handler._choices_of(found, offered, kernel_inputs)

        def hosts() -> None:
            assert host.lookup_template_configs(kernel_inputs, op, uids, hashes)

        for _ in range(self.repeats):
            self.ours.append(seconds(ours))
            with inductor.patch({"lookup_table.table": self.table}):
                self.hosts.append(seconds(hosts))


def seconds(call: Callable[[], None]) -> float:
    """Return how long one call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def run(tokens: int, entries: int, repeats: int) -> dict[str, Any]:
    """Measure and return the figures; times in µs."""
    table = table_of(lower(tokens), entries)
    inductor_tables.enable(table)
    probe = Probe(table, repeats)
    original = TableChoices._finalize_template_configs

    def probed(
        self: Any, choices: Any, kernel_inputs: Any, templates: Any, op: str, *rest: Any
    ) -> Any:
        probe(self, kernel_inputs, templates, op)
        return original(self, choices, kernel_inputs, templates, op, *rest)

    with mock.patch.object(TableChoices, "_finalize_template_configs", probed):
        lower(tokens)
    inductor_tables.disable()
    ours, hosts = (statistics.median(times) * 1e6 for times in (probe.ours, probe.hosts))
    return {
        "lookup_us_p50": ours,
        "lookup_us_p90": statistics.quantiles(probe.ours, n=10)[-1] * 1e6,
        "host_us_p50": hosts,
        "host_us_p90": statistics.quantiles(probe.hosts, n=10)[-1] * 1e6,
        "ratio_to_host": ours / hosts,
        "keys": len(probe.keys),
        "samples": len(probe.ours),
        "entries_per_key": entries,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--tokens", default=512, show_default=True)
@click.option("--entries", default=1, show_default=True, help="Entries per key.")
@click.option("--repeats", default=200, show_default=True, help="Look-ups per op and handler.")
def main(as_json: bool, tokens: int, entries: int, repeats: int) -> None:
    """Measure and print."""
    figures = run(tokens, entries, repeats)
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    shown = Table("figure", "value")
    for name, value in figures.items():
        shown.add_row(name, f"{value:.2f}" if isinstance(value, float) else str(value))
    Console().print(shown)


if __name__ == "__main__":
    main()
