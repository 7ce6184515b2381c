"""What importing and enabling load: next to nothing. How long it takes is a benchmark's matter."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "msgpack", "packaging", "click", "rich", "numpy", "json", "logging")


def loaded_after(code: str) -> set[str]:
    """Return the modules that a fresh Python has after running some code, less its own."""
    program = f"import sys; before = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", HEAVY)
def test_importing_loads_nothing_heavy(module: str) -> None:
    """The import brings neither torch nor any other dependency."""
    assert module not in loaded_after("import inductor_tables")


def test_importing_loads_one_module_of_ours() -> None:
    """Submodules are loaded when they are used."""
    loaded = loaded_after("import inductor_tables")
    assert {name for name in loaded if name.startswith("inductor_tables")} == {"inductor_tables"}


@pytest.mark.parametrize(
    "code",
    [
        "import inductor_tables; inductor_tables.enable()",
        "import inductor_tables; inductor_tables.enable(version='>=1')",
        "import inductor_tables; inductor_tables.enable('/no/such/table')",
        "import inductor_tables\nwith inductor_tables.enable(): pass",
        "import inductor_tables; inductor_tables.enable(); inductor_tables.is_enabled()",
        "import inductor_tables; inductor_tables.enable(); inductor_tables.disable()",
    ],
)
def test_enabling_loads_no_torch_and_no_reader(code: str) -> None:
    """Enabling waits for torch: it neither imports it nor what reads tables."""
    loaded = loaded_after(code)
    assert not loaded & {"torch", "triton", "numpy", "msgpack", "inductor_tables.table"}


@pytest.mark.parametrize("after", ["", "import torch", "import torch._inductor"])
def test_enabling_reads_no_table(after: str) -> None:
    """No table is opened by enabling, before torch is imported or after, and no socket."""
    code = f"""if True:
        import sys
        opened = []
        def note(event, args):
            if event == "open" and str(args[0]).endswith((".msgpack", ".json")):
                opened.append(args[0])
            if event.startswith("socket."):
                opened.append(event)
        import inductor_tables
        sys.addaudithook(note)
        inductor_tables.enable()
        {after or "pass"}
        inductor_tables.is_enabled()
        print(opened)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_enabling_creates_no_cuda_context() -> None:
    """With torch there already, enabling leaves its CUDA uninitialised."""
    code = (
        "import torch, inductor_tables; inductor_tables.enable(); "
        "print(torch.cuda.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_settings_load_no_torch() -> None:
    """Settings can be changed before torch is there."""
    loaded = loaded_after("import inductor_tables; inductor_tables.config.active = False")
    assert not loaded & {"torch", "msgpack", "packaging"}


def test_names_are_found_late_but_found() -> None:
    """Every public name is there, listed, and an unknown one is an AttributeError."""
    code = """if True:
        import inductor_tables
        assert set(inductor_tables.__all__) <= set(dir(inductor_tables))
        for name in inductor_tables.__all__:
            getattr(inductor_tables, name)
        try:
            inductor_tables.no_such_name
        except AttributeError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "module 'inductor_tables' has no attribute 'no_such_name'"
