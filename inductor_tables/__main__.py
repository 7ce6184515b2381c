"""``python -m inductor_tables`` and the ``inductor-tables`` command."""

from __future__ import annotations

import sys

_MISSING = "inductor-tables: the command line needs {}; run: pip install 'inductor-tables[cli]'\n"


def main() -> None:
    """Run the command line; exit with 2 where click or rich is not installed."""
    try:
        from inductor_tables.cli import commands
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"click", "rich"}:
            raise
        sys.stderr.write(_MISSING.format(package))
        raise SystemExit(2) from None
    commands(prog_name="inductor-tables")


if __name__ == "__main__":
    main()
