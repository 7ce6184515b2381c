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

_USERS: Final = "/etc/passwd"
_GROUPS: Final = "/etc/group"

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
    root and be writable by nobody else; a directory may be if it has the sticky bit. The
    owner's private group is nobody else. An ACL that lets another user write shows as a
    writable group. Where there are no POSIX permissions none are looked at.

    Nothing is opened: a FIFO without a writer would block, opening a device may do things.

    Raises:
        InvalidTableError: the file may not be read; the message says what to do.
        OSError: there is no such file, or it cannot be reached.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        found = real.lstat()
    except OSError as error:  # names only the part of the path that is not there
        raise OSError(error.errno, error.strerror, str(path)) from error
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
    shown = f"(mode {stat.S_IMODE(mode):04o})"
    if mode & stat.S_IWOTH:
        return f"may be written to by everybody {shown}"
    if mode & stat.S_IWGRP and not _is_private_group(found.st_uid, found.st_gid):
        return f"may be written to by the group {found.st_gid} {shown}"
    return None


def _is_private_group(uid: int, gid: int) -> bool:
    """Whether a group is named after its only member, as many systems give one to each user.

    Only the local files are asked: other sources of users may be reached over a network.
    """
    users = [
        (name, user, primary)
        for name, _, user, primary, *_ in _lines(_USERS, 7)
        if str(uid) == user or str(gid) == primary
    ]
    groups = [(name, who) for name, _, group, who in _lines(_GROUPS, 4) if str(gid) == group]
    if len(users) != 1 or len(groups) != 1:
        return False
    (name, *ids), (group, members) = users[0], groups[0]
    return ids == [str(uid), str(gid)] and group == name and members in {"", name}


def _lines(path: str, fields: int) -> list[list[str]]:
    """Return the lines of a file of users or groups as fields; [] where it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = [line.split(":") for line in text.splitlines()]
    return [line for line in lines if len(line) == fields]
