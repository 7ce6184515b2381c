"""How a GPU's gcnArchName becomes a folder, and which archs may share a table."""

from __future__ import annotations

import re
from typing import NewType

ArchFolder = NewType("ArchFolder", str)
"""Folder of one arch below a series; only :func:`arch_folder` makes one."""

AGNOSTIC_FOLDER = ArchFolder("any")
"""Folder of tables whose keys carry no device."""

_NOT_IN_FOLDERS = re.compile(r"[^a-z0-9]+")
_AMD_ARCH = re.compile(r"(gfx[0-9a-f]+)(?::[a-z]+[+-])*")


def arch_folder(arch: str) -> ArchFolder:
    """Return the folder of an arch: lower case, all else a dash.

    Feature signs stay apart (``gfx942:sramecc+:xnack-`` and ``...xnack+`` are two
    archs), every other run of signs becomes one dash.

    >>> arch_folder("NVIDIA H200"), arch_folder("gfx942:sramecc+:xnack-")
    ('nvidia-h200', 'gfx942-sramecc-on-xnack-off')

    Raises:
        ValueError: nothing of the name is left, or it is the agnostic folder's.
    """
    spelled = arch.lower()
    if _AMD_ARCH.fullmatch(spelled):
        spelled = re.sub(r"\+(?=:|$)", "-on", re.sub(r"-(?=:|$)", "-off", spelled))
    folder = _NOT_IN_FOLDERS.sub("-", spelled).strip("-")
    if not folder or folder == AGNOSTIC_FOLDER:
        raise ValueError(f"no folder can be named after the arch {arch!r}")
    return ArchFolder(folder)


def base_arch(arch: str) -> str | None:
    """Return an AMD arch without its feature flags, None where there are none to drop.

    >>> base_arch("gfx942:sramecc+:xnack-"), base_arch("NVIDIA H200")
    ('gfx942', None)
    """
    found = _AMD_ARCH.fullmatch(arch)
    return found[1] if found and found[1] != arch else None
