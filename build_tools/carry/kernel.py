"""What a torch hands to Triton for an entry, and whether two torches' kernels are one.

Importing this module imports torch; the workers of ``carry --by-code`` do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from inductor_tables.simulation import Simulation

_NAME: Final = "kernel"
_PRELUDE: Final = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
"""Nothing of torch's: a kernel that calls torch's helpers does not compile, and is not carried."""

_SETTINGS: Final = {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_ALWAYS_COMPILE": "1"}
"""Triton's environment variables: no debug information, nothing from its cache."""

_OWN: Final = frozenset({"hash"})
"""Fields of a compiled kernel that tell of its source, not of how it is launched."""

_GRID = re.compile(r"'(grid_type|fixed_grid|extra_launcher_args)': ('[^']*'|\[[^\]]*\])")
_STREAM = re.compile(r", stream=\w+\)$")
_WORKSPACE = re.compile(r"^workspace_\d+ = ")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel as torch has it compiled and launched; every field is JSON.

    Attributes:
        function: the text of the Triton function, named ``kernel``.
        signature: parameter → Triton's type, in order.
        constants: (path, value) of the parameters that are constants.
        attributes: (path, what is known of it) of the parameters, such as a divisibility.
        options: of Triton's compile: warps, stages and the like.
        target: backend, architecture, threads a warp.
        launch: the grid and the arguments, in order, and the workspace they need.
    """

    function: str
    signature: Mapping[str, str]
    constants: Sequence[tuple[Sequence[int], Any]]
    attributes: Sequence[tuple[Sequence[int], Any]]
    options: Mapping[str, Any]
    target: Sequence[Any]
    launch: Sequence[str]


class _KeptError(BaseException):
    """Ends a compile that got far enough; nobody's handler takes it for a failure."""


def kernel_of(sim: Simulation, source: str) -> Kernel:
    """Return what a rendered source has compiled; nothing is.

    Args:
        sim: the device, with the code of the graph that the source was rendered in.
        source: as :func:`build_tools.render.render` returns it.
    """
    kept: list[tuple[Any, Any, Any]] = []

    def keep(asked: Any, target: Any = None, options: Any = None) -> None:
        kept.append((asked, target, options))
        raise _KeptError

    with mock.patch.object(triton, "compile", keep), contextlib.suppress(_KeptError):
        sim.compile_kernel(source)
    ((asked, target, options),) = kept
    name = asked.fn.__name__
    return Kernel(
        function=re.sub(rf"^def {name}\(", f"def {_NAME}(", asked.fn.src, count=1),
        signature=dict(asked.signature),
        constants=[(list(path), value) for path, value in asked.constants.items()],
        attributes=[(list(path), value) for path, value in asked.attrs.items()],
        options=dict(options),
        target=[target.backend, target.arch, target.warp_size],
        launch=list(_launch(name, source, sim.codes[-1])),
    )


def _launch(name: str, source: str, code: str) -> Iterator[str]:
    for field, value in _GRID.findall(source):
        yield f"{field}={value}"
    for line in map(str.strip, code.splitlines()):
        if line.startswith(f"{name}.run("):
            yield _STREAM.sub(")", line.removeprefix(f"{name}."))
        elif _WORKSPACE.match(line):
            yield line


def difference(recorded: Kernel, own: Kernel) -> str | None:
    """Say in what two kernels differ for the installed triton, None if in nothing.

    What torch tells the launcher is compared, then the module in Triton's own language (TTIR):
    all that the compiler makes a binary of, besides options and target. Where that differs, both
    are compiled, without debug information, and the binaries compared byte by byte, with all that
    Triton tells the launcher: warps, stages, shared memory, scratch memory, clusters and the like.

    Args:
        recorded: the kernel of the torch that an entry was recorded on.
        own: that of the torch it shall serve.

    Raises:
        Exception: whatever Triton raises where a kernel does not compile.
    """
    if recorded.launch != own.launch:
        return "the launch differs"
    types = list(own.signature.values())
    if (list(recorded.signature.values()), recorded.constants) != (types, own.constants):
        return "the parameters differ"
    with mock.patch.dict(os.environ, _SETTINGS):
        asked = (recorded.options, recorded.target) == (own.options, own.target)
        if asked and _module(recorded) == _module(own):
            return None
        return _binaries_differ(recorded, own)


def _binaries_differ(recorded: Kernel, own: Kernel) -> str | None:
    (first, told), (second, tells) = _compiled(recorded), _compiled(own)
    for field in sorted(told.keys() | tells.keys()):
        if told.get(field) != tells.get(field):
            return f"{field} is {tells.get(field)}, not {told.get(field)}"
    return None if first == second else "the compiled code differs"


def _module(kernel: Kernel) -> str:
    """Return the text of a kernel's TTIR, which Triton makes first and within 0.1 s."""
    backend: Any = type(make_backend(GPUTarget(*kernel.target)))
    add_stages = backend.add_stages

    def only_first(self: Any, stages: dict[str, Any], *args: Any) -> None:
        add_stages(self, stages, *args)
        make = stages["ttir"]

        def end(source: Any, metadata: Any) -> None:
            raise _KeptError(str(make(source, metadata)))

        stages["ttir"] = end

    with mock.patch.object(backend, "add_stages", only_first):
        try:
            _compile(kernel)
        except _KeptError as kept:
            return str(kept)
    raise AssertionError("Triton compiled a kernel without its first stage")


def _compiled(kernel: Kernel) -> tuple[bytes, dict[str, str]]:
    """Return a kernel's binary and what Triton says of it."""
    compiled = _compile(kernel)
    told = compiled.metadata._asdict()
    return compiled.kernel, {name: repr(told[name]) for name in told.keys() - _OWN}


def _compile(kernel: Kernel) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{_NAME}.py")
        path.write_text(_PRELUDE + kernel.function, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(_NAME, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return triton.compile(
            ASTSource(
                getattr(module, _NAME),
                dict(kernel.signature),
                {tuple(path): value for path, value in kernel.constants},
                {tuple(path): value for path, value in kernel.attributes},
            ),
            target=GPUTarget(*kernel.target),
            options=dict(kernel.options),
        )
