"""Whose files are read as tables: nobody's who could change them behind the user's back."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from process_support import KEY, shown, write_table

import inductor_tables
from inductor_tables import config, host, trust
from inductor_tables.activation import current_activation
from inductor_tables.errors import InvalidTableError
from inductor_tables.resources import user_tables
from inductor_tables.trust import checked_file

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(autouse=True)
def _no_private_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every group be one of several users."""
    monkeypatch.setattr(trust, "_GROUPS", str(tmp_path / "none"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table two directories deep, all of it its owner's alone."""
    (tmp_path / "team").mkdir(mode=0o755)
    return write_table(tmp_path / "team" / "tables" / "mine.json")


def test_ones_own_file_is_read(table: Path) -> None:
    """A file that only its owner may write to, reached directly and through a symlink."""
    link = table.parent / "link"
    link.symlink_to(table)
    assert checked_file(table) == table
    assert checked_file(link) == table
    (found,) = user_tables(table, host.installed_series(), "tables[0]")
    assert found.lookup(KEY)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o620])
def test_a_file_that_others_may_write_to_is_refused(table: Path, mode: int) -> None:
    """By its group or by everybody; the message says who, and what to do."""
    table.chmod(mode)
    problem = rf"mine\.json may be written to by .* \(mode {mode:04o}\).*chmod go-w.*trusted_paths"
    with pytest.raises(InvalidTableError, match=problem):
        checked_file(table)


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_directory_that_others_may_write_to_is_refused(
    table: Path, levels: int, mode: int
) -> None:
    """Whoever may write to any directory above the file can put another in its place."""
    above = table.parents[levels - 1]
    above.chmod(mode)
    with pytest.raises(InvalidTableError, match=rf"permissions: {above} may be written to by"):
        checked_file(table)


def test_a_sticky_directory_is_fine(table: Path) -> None:
    """In a directory such as /tmp nobody can replace the file of another."""
    table.parent.chmod(0o1777)
    assert checked_file(table) == table


@as_root
@pytest.mark.parametrize("levels", [0, 1, 2])
def test_a_file_or_directory_of_another_user_is_refused(table: Path, levels: int) -> None:
    """The owner may change the file, whatever its mode is now."""
    owned = (table, *table.parents)[levels]
    os.chown(owned, 54321, 54321)
    with pytest.raises(InvalidTableError, match=rf"{owned} belongs to the user 54321"):
        checked_file(table)


@as_root
def test_roots_files_are_read_by_others(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may change everything anyway."""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert checked_file(table) == table


PASSWD = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\n"
GROUP = "root:x:0:\nann:x:1000:\n"


@pytest.mark.parametrize(
    ("users", "groups", "private"),
    [
        (PASSWD, GROUP, True),
        (PASSWD, GROUP.replace("1000:", "1000:ann"), True),
        (PASSWD, GROUP.replace("1000:", "1000:ann,bob"), False),
        (PASSWD, GROUP.replace("1000:", "1000:bob"), False),
        (PASSWD, GROUP.replace("ann", "staff"), False),
        (PASSWD + "bob:x:1001:1000:Bob:/home/bob:/bin/sh\n", GROUP, False),
        (PASSWD + "ann2:x:1000:1002:Ann:/home/ann:/bin/sh\n", GROUP, False),
        (PASSWD, GROUP + "wheel:x:1000:bob\n", False),
        (PASSWD.replace("1000:1000", "1000:100"), GROUP, False),
        (PASSWD, "", False),
        ("", GROUP, False),
        ("not a passwd file\n::::::\n\ud800:::::\n", "::\n", False),
        (None, GROUP, False),
    ],
)
def test_a_private_group_is_nobody_else(
    users: str | None,
    groups: str,
    private: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group named after its only member, by the local files of users and groups."""
    if users is not None:
        (tmp_path / "passwd").write_text(users, encoding="utf-8", errors="surrogatepass")
    (tmp_path / "group").write_text(groups, encoding="utf-8")
    monkeypatch.setattr(trust, "_USERS", str(tmp_path / "passwd"))
    monkeypatch.setattr(trust, "_GROUPS", str(tmp_path / "group"))
    assert trust._is_private_group(1000, 1000) is private


def test_a_private_groups_file_is_read(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With umask 002 and private groups, one's own recordings can be enabled."""
    monkeypatch.setattr(trust, "_is_private_group", lambda uid, gid: True)
    table.chmod(0o664)
    table.parent.chmod(0o775)
    assert checked_file(table) == table
    table.chmod(0o666)
    with pytest.raises(InvalidTableError, match="by everybody"):
        checked_file(table)


def test_symlinks_are_resolved_before_the_check(table: Path) -> None:
    """A link in a place of one's own does not make its target one's own."""
    table.parent.chmod(0o777)
    link = table.parents[1] / "link"
    link.symlink_to(table)
    with pytest.raises(InvalidTableError, match=f"permissions: {table.parent} may be written to"):
        checked_file(link)


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_allowed_by_name(table: Path, levels: int) -> None:
    """The file or any directory above it, named, is read as it is."""
    table.chmod(0o666)
    table.parent.chmod(0o777)
    named = (table, *table.parents)[levels]
    with config.patch(trusted_paths=("/no/such/path", str(named))):
        assert checked_file(table) == table


def test_allowed_through_a_symlink(table: Path) -> None:
    """What is named is resolved as what is read is."""
    table.chmod(0o666)
    link = table.parents[1] / "link"
    link.symlink_to(table.parent)
    with config.patch(trusted_paths=(str(link),)):
        assert checked_file(table) == table


def test_another_name_allows_nothing(table: Path) -> None:
    """Neither a neighbour nor a name that the path begins with."""
    table.chmod(0o666)
    others = (str(table)[:-1], str(table.parent / "other"), f"{table.parents[1]}/tab")
    with (
        config.patch(trusted_paths=others),
        pytest.raises(InvalidTableError, match="by everybody"),
    ):
        checked_file(table)


def test_allowed_by_environment_variable(table: Path) -> None:
    """A path a line; one may hold spaces and colons."""
    odd = write_table(table.parents[1] / "a: b" / "c:d.json")
    odd.chmod(0o666)
    script = """
    from inductor_tables import host
    from inductor_tables.resources import user_tables
    show(keys=len(user_tables(sys.argv[1], host.installed_series(), "tables[0]")[0]))
    """
    trusted = f"/no/such/path\n{odd.parent}\n"
    assert shown(script, odd, INDUCTOR_TABLES_TRUSTED_PATHS=trusted) == {"keys": 1}


def _fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _huge(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, trust.MAX_BYTES + 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (_fifo, "expected a regular file, found a FIFO"),
        (_socket, "expected a regular file, found a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "expected a regular file, found a device"),
        (lambda path: path.symlink_to("/"), "expected a regular file, found a directory"),
        (_huge, f"{trust.MAX_BYTES + 1} bytes; at most {trust.MAX_BYTES} are read"),
        (lambda path: path.touch(0o600), "the file is empty"),
    ],
)
@pytest.mark.parametrize("trusted", [False, True])
def test_what_is_no_file_of_a_tables_size_is_refused(
    make: Callable[[Path], None], problem: str, trusted: bool, tmp_path: Path
) -> None:
    """Without opening it, and also where the name is allowed."""
    path = tmp_path / "table"
    make(path)
    named = ("/",) if trusted else ()
    with config.patch(trusted_paths=named), pytest.raises(InvalidTableError, match=problem):
        checked_file(path)


def test_what_is_not_there_is_said_as_the_system_says_it(tmp_path: Path) -> None:
    """A path that leads nowhere or in a circle, and one that none can be."""
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none"))):
        checked_file(tmp_path / "none")
    with pytest.raises(OSError, match="circle"):
        checked_file(circle)
    with pytest.raises(InvalidTableError, match="null"):
        checked_file(Path("a\0b"))


def test_enable_says_why_a_table_is_not_used(table: Path) -> None:
    """One problem in status(), none where it is allowed by name."""
    table.chmod(0o666)
    table = table.rename(table.with_name("inductor_lut_mine.json"))
    for given in (table, table.parent):
        with inductor_tables.enable(given):
            (problem,) = problems()
        assert "may be written to by everybody" in problem
    with config.patch(trusted_paths=(str(table),)), inductor_tables.enable(table):
        assert not problems()


def problems() -> list[str]:
    """Have the tables opened and return what status() says is wrong."""
    found = current_activation()
    assert found is not None
    found.digest()
    return inductor_tables.status().problems


def test_every_file_of_a_directory_is_checked(tmp_path: Path) -> None:
    """A build's output, and files side by side."""
    for name in ("2.99/any/gemm.msgpack", f"{host.installed_series()}/any/gemm.msgpack"):
        write_table(tmp_path / name).chmod(0o666)
    with pytest.raises(InvalidTableError, match="by everybody"):
        user_tables(tmp_path, host.installed_series(), "tables[0]")
