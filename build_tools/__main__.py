"""``python -m build_tools``."""

from __future__ import annotations

from build_tools.cli import main

if __name__ == "__main__":
    main(prog_name="python -m build_tools")
