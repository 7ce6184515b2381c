"""Which of the user's files are read as tables: regular ones that nobody else may change."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from inductor_tables import config
from inductor_tables.errors import InvalidTableError

MAX_BYTES: Final = 2**30
"""Largest file that is opened; a table of a million keys has about 40 MB."""

_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def checked_file(path: Path) -> Path:
    """Return the file that a path leads to, symlinks resolved, if it may be read as a table.

    It must be a regular file of 1 byte to 1 GiB. Unless it is allowed by name, see
    ``config.trusted_paths``, it and every directory above it must belong to this user or
    root and be writable by no group and not by everybody; a directory may be if it has the
    sticky bit. An ACL that lets another user write shows as a writable group. Who owns and
    may write a file is not looked at where there are no POSIX permissions.

    Nothing is opened: a FIFO without a writer would block, opening a device may do things.

    Raises:
        InvalidTableError: the file may not be read; the message says what to do.
        OSError: there is no such file, or it cannot be reached.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        found = real.lstat()
    except ValueError as error:  # a NUL in the path
        raise InvalidTableError(repr(path), "path", str(error)) from error
    problem = _unreadable(found)
    if problem is not None:
        raise InvalidTableError(str(real), "file", problem)
    if os.name == "posix" and not _is_trusted(real):
        _refuse_what_others_may_change(real)
    return real


def _unreadable(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "something else")
        return f"expected a regular file, found {kind}"
    if found.st_size > MAX_BYTES:
        return f"{found.st_size} bytes; at most {MAX_BYTES} are read"
    if not found.st_size:  # also what the kernel makes up on reading, which may block
        return "the file is empty"
    return None


def _is_trusted(real: Path) -> bool:
    named = {os.path.realpath(path) for path in config.trusted_paths}
    return any(str(place) in named for place in (real, *real.parents))


def _refuse_what_others_may_change(real: Path) -> None:
    for place in (real, *real.parents):
        doubt = _doubt(place.lstat())
        if doubt is not None:
            raise InvalidTableError(
                str(real),
                "permissions",
                f"{place} {doubt}, so that others could change the table. Take the right to "
                "write from them (chmod go-w), copy the file to a place of your own, or allow "
                "it, or a directory above it, by name in inductor_tables.config.trusted_paths "
                f"({config.ENV_PREFIX}TRUSTED_PATHS)",
            )


def _doubt(found: os.stat_result) -> str | None:
    """Return why somebody else may change a file or what a directory holds."""
    mode = found.st_mode
    if found.st_uid not in {0, os.geteuid()}:
        return f"belongs to the user {found.st_uid}, neither to this one nor to root"
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "everybody" if mode & stat.S_IWOTH else f"the group {found.st_gid}"
        return f"may be written to by {who} (mode {stat.S_IMODE(mode):04o})"
    return None
