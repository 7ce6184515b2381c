"""Which templates each torch has, with their hashes: of the installed torch, and as data.

A template hash is the SHA-256 of the template's text in hex. Templates without a text
(ATen kernels, subgraphs) have none; they are listed with None, so that an id that no
torch knows can be told from one that has no hash.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from build_tools.files import replace_file
from inductor_tables.errors import BuildError
from inductor_tables.versions import TorchSeries, series_order, torch_series

COMMITTED: Final = Path(__file__).parent / "data" / "template_hashes.json"
"""Series → version, templates and rocm, written by ``build_tools hashes --write``."""

_KERNELS: Final = "torch._inductor.kernel"


@dataclass(frozen=True, kw_only=True)
class TemplateHashes:
    """The templates of one torch.

    ``version`` is the public version that was looked at, e.g. ``"2.13.0"``. ``templates``
    maps template id → hash, None where the template has none. ``rocm`` holds the hashes
    that some ids have instead on a ROCm build whose triton is older than 3.3
    (``torch/_inductor/kernel/mm.py``, 2.10 to 2.15); every other ROCm build registers
    the same texts as a CUDA build.
    """

    version: str
    templates: Mapping[str, str | None]
    rocm: Mapping[str, str]

    @property
    def series(self) -> TorchSeries:
        """The torch series that ``version`` belongs to."""
        return torch_series(self.version)

    def problem(self, template_id: str, template_hash: str | None, *, rocm: bool) -> str | None:
        """Say what keeps a recorded (template id, hash) from serving this torch, else None."""
        if template_id not in self.templates:
            known = ", ".join(self.templates)
            return (
                f"unknown template {template_id!r}; expected one of torch {self.version}: {known}"
            )
        expected = self.templates[template_id]
        if template_hash == expected or (rocm and template_hash == self.rocm.get(template_id)):
            return None
        if template_hash is None:
            return f"{template_id} without a template hash; expected {expected}"
        if expected is None:
            return f"{template_id} has no text to hash; expected no hash, found {template_hash}"
        return (
            f"stale {template_id}; expected the hash {expected} of torch {self.version}, "
            f"found {template_hash}"
        )


def hashes_of(
    series: TorchSeries, committed: Mapping[TorchSeries, TemplateHashes]
) -> TemplateHashes:
    """Return the templates of a series.

    Raises:
        BuildError: nothing is known of it.
    """
    if series not in committed:
        raise BuildError(
            f"expected a series whose template hashes are committed ({', '.join(committed)}), "
            f"found {series}; run 'python -m build_tools hashes --write' on torch {series}"
        )
    return committed[series]


def installed_series() -> TorchSeries | None:
    """Return the series of the installed torch without importing it; None: no torch."""
    try:
        return torch_series(importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_hashes() -> TemplateHashes:
    """Collect what the installed torch registers.

    Raises:
        ImportError: no torch is installed.
    """
    torch = importlib.import_module("torch")
    templates, rocm = installed_templates()
    return TemplateHashes(version=Version(torch.__version__).public, templates=templates, rocm=rocm)


def installed_templates() -> tuple[dict[str, str | None], dict[str, str]]:
    """Return (template id → hash, template id → hash of the text for old ROCm tritons).

    The only code here that knows private names of torch, the same on 2.10 to 2.15: every
    template and ATen choice is an attribute of the module that made it, is named by
    ``uid`` and holds its hash as ``src_hash``. Modules that need a package which is not
    installed (CUTLASS) register nothing for look-ups and are left out, and so are the CPU
    kernels of MKL-DNN, which only some builds have.
    """
    common = importlib.import_module("torch._inductor.codegen.common")
    select_algorithm = importlib.import_module("torch._inductor.select_algorithm")
    kernels = importlib.import_module(_KERNELS)
    importlib.import_module("torch._inductor.lowering")
    importlib.import_module("torch._inductor.fx_passes.b2b_gemm")  # else the first compile does
    for module in pkgutil.walk_packages(kernels.__path__, f"{_KERNELS}."):
        with suppress(ImportError):
            importlib.import_module(module.name)
    kinds = (common.KernelTemplate, select_algorithm.ExternKernelChoice)
    registered = [
        *select_algorithm.TritonTemplate.all_templates.values(),
        *_attributes_of_inductor(kinds),
    ]
    found = {template.uid: template.src_hash for template in registered}
    text = Path(kernels.__path__[0], "templates", "triton_mm_rocm.py.jinja").read_bytes()
    return dict(sorted(found.items())), {"triton::mm": sha256(text).hexdigest()}


def _attributes_of_inductor(kinds: tuple[type, ...]) -> Iterator[Any]:
    for name, module in sorted(sys.modules.items()):
        if name.startswith("torch._inductor.") and module is not None:
            # type(), as isinstance() asks lazy proxies for their class, which warns
            yield from (v for v in list(vars(module).values()) if issubclass(type(v), kinds))


def read_committed(path: Path = COMMITTED) -> dict[TorchSeries, TemplateHashes]:
    """Read the committed data.

    Raises:
        BuildError: the file is damaged, or a series is not its version's.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        found = {TorchSeries(series): TemplateHashes(**fields) for series, fields in raw.items()}
        misfiled = [(s, hashes.version) for s, hashes in found.items() if hashes.series != s]
    except (ValueError, TypeError, AttributeError) as error:
        raise BuildError(
            f"{path}: expected series -> version, templates and rocm, found: {error}; "
            "restore the file or write it anew with 'hashes --write' on each torch"
        ) from error
    for series, version in misfiled:
        raise BuildError(f"{path}: {series}.version: expected one of {series}, found {version!r}")
    return found


def write_committed(hashes: TemplateHashes, path: Path = COMMITTED) -> None:
    """Put one torch into the committed data; the other series stay as they are.

    Raises:
        BuildError: the existing file is damaged.
    """
    known = read_committed(path) if path.exists() else {}
    known[hashes.series] = hashes
    raw = {series: as_data(known[series]) for series in sorted(known, key=series_order)}
    replace_file(path, f"{json.dumps(raw, indent=1)}\n".encode())


def as_data(hashes: TemplateHashes) -> dict[str, Any]:
    """Return the JSON form of one torch's hashes, sorted by template id."""
    return {
        "version": hashes.version,
        "templates": dict(sorted(hashes.templates.items())),
        "rocm": dict(sorted(hashes.rocm.items())),
    }
