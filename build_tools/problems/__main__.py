"""The command line: ``python -m build_tools.problems`` writes the files of problems anew."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from build_tools.people import errors_for_people
from build_tools.problems.collecting import collected
from build_tools.problems.families import FAMILIES
from inductor_tables import problems

HERE = Path(__file__).resolve().parent


@click.command()
@click.argument("families", nargs=-1, type=click.Choice(list(FAMILIES)))
@click.option("--out", default=HERE, type=click.Path(file_okay=False, path_type=Path),
              help="Directory to write into; default: that of this package.")  # fmt: skip
@click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1),
              help="How many families at the same time, each in a process.")  # fmt: skip
@errors_for_people
def main(families: Sequence[str], out: Path, workers: int) -> None:
    """Collect the problems of FAMILIES, by default of all, into OUT/<family>.json."""
    out.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(families or FAMILIES))
    with ThreadPoolExecutor(workers) as pool:
        for name, found in zip(names, pool.map(collected, names), strict=True):
            problems.write(out / f"{name}.json", found)
            models = {model for problem in found for model in problem.models}
            click.echo(f"{name}: {len(found)} problems of {len(models)} models")


if __name__ == "__main__":
    main(prog_name="python -m build_tools.problems")
