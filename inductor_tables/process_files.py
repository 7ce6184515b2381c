"""Files that many processes write side by side, each its own, with no locks."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from inductor_tables.dumps import write_atomically

_NAME_TRIES: Final = 1000


def create_file(directory: Path, prefix: str, content: bytes, moment: datetime) -> Path:
    """Write a file under a name that nobody has; the ms count on where one is taken.

    Raises:
        FileExistsError: a thousand names from ``moment`` on are taken.
        OSError: the file cannot be written.
    """
    for later in range(_NAME_TRIES):
        path = directory / file_name(prefix, moment + timedelta(milliseconds=later))
        with contextlib.suppress(FileExistsError):
            write_atomically(path, content, exclusive=True)
            return path
    raise FileExistsError(f"{path} and {_NAME_TRIES - 1} names before it are taken")


def file_name(prefix: str, moment: datetime) -> str:
    """Return ``<prefix>_<YYYYMMDD_HHMMSS, UTC>_<ms>_<host>_<pid>[_<rank>].json``."""
    machine = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname())[:64].strip(".-") or "host"
    parts = [f"{moment:%Y%m%d_%H%M%S}_{moment.microsecond // 1000:03d}", machine, str(os.getpid())]
    rank = _process_rank()
    return f"{prefix}_{'_'.join(parts if rank is None else [*parts, rank])}.json"


def _process_rank() -> str | None:
    """Return this process's rank among those of a distributed run, None outside of one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return str(distributed.get_rank())
    rank = os.environ.get("RANK", "")
    return rank if re.fullmatch(r"[0-9]{1,9}", rank) else None
