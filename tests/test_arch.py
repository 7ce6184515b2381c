"""How archs become folders, and which archs share a table."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inductor_tables.arch import AGNOSTIC_FOLDER, arch_folder, base_arch


@pytest.mark.parametrize(
    ("arch", "folder"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "nvidia-geforce-rtx-4070-ti-super"),
        ("gfx942", "gfx942"),
        ("gfx90a:sramecc+:xnack-", "gfx90a-sramecc-on-xnack-off"),
        ("gfx942:sramecc+:xnack-", "gfx942-sramecc-on-xnack-off"),
        ("gfx942:sramecc+:xnack+", "gfx942-sramecc-on-xnack-on"),
        ("gfx942:sramecc-:xnack-", "gfx942-sramecc-off-xnack-off"),
        ("gfx1100", "gfx1100"),
        ("../../etc/passwd", "etc-passwd"),
        ("/", None),
        ("..", None),
        ("", None),
        (" \n\x00", None),
        ("any", None),
        ("ANY", None),
        ("-any-", None),
        ("ускоритель", None),
    ],
)
def test_folders(arch: str, folder: str | None) -> None:
    """A name becomes one plain folder name; what has none left, or takes 'any', is refused."""
    if folder is None:
        with pytest.raises(ValueError, match="no folder can be named after the arch"):
            arch_folder(arch)
    else:
        assert arch_folder(arch) == folder


@given(st.text() | st.from_regex(r"gfx[0-9a-f]{1,4}(:[a-z]{1,8}[+-]){0,3}", fullmatch=True))
@example("\u212a200")
@example("gfx942:xnack+\n")
def test_a_folder_is_one_plain_path_part(arch: str) -> None:
    """Whatever the name, its folder is a part of a path that leads nowhere else."""
    try:
        folder = arch_folder(arch)
    except ValueError:
        return
    assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", folder)
    assert folder != AGNOSTIC_FOLDER
    assert PurePosixPath("a", folder).parts == ("a", folder)
    assert arch_folder(folder) == folder


@given(st.lists(st.sampled_from(["sramecc", "xnack"]), unique=True, min_size=1), st.data())
def test_feature_flags_stay_apart(flags: list[str], data: st.DataObject) -> None:
    """Two settings of an AMD arch's flags never share a folder."""
    signs = st.lists(st.sampled_from("+-"), min_size=len(flags), max_size=len(flags))
    one, other = data.draw(signs), data.draw(signs)
    names = [
        "gfx942" + "".join(f":{flag}{sign}" for flag, sign in zip(flags, chosen, strict=True))
        for chosen in (one, other)
    ]
    assert (arch_folder(names[0]) == arch_folder(names[1])) == (one == other)
    assert base_arch(names[0]) == "gfx942"


@pytest.mark.parametrize(
    ("arch", "base"),
    [
        ("gfx942:sramecc+:xnack-", "gfx942"),
        ("gfx90a:xnack-", "gfx90a"),
        ("gfx942", None),
        ("NVIDIA H200", None),
        ("NVIDIA:x+", None),
        ("gfx942:sramecc", None),
        ("gfx942:SRAMECC+", None),
        ("GFX942:sramecc+", None),
        ("gfx942:sramecc+:xnack-\n", None),
        ("x gfx942:sramecc+", None),
        ("", None),
    ],
)
def test_base_archs(arch: str, base: str | None) -> None:
    """Only an AMD name with feature flags has a base."""
    assert base_arch(arch) == base
