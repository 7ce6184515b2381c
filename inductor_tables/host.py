"""The one module that touches torch's private names and knows version differences.

Importing it imports no torch. Facts about the host are from the sources of torch 2.10.0,
2.11.0, 2.12.1, 2.13.0, 2.14.1 and 2.15.0, each named where it is used.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from inductor_tables._imports import forget_when_imported, when_imported
from inductor_tables.errors import UnsupportedTorchError
from inductor_tables.versions import OLDEST_SERIES, TorchSeries, series_order, torch_series

if TYPE_CHECKING:
    import torch

VIRTUALIZED = "torch._inductor.virtualized"
CODECACHE = "torch._inductor.codecache"
SELECT_ALGORITHM = "torch._inductor.select_algorithm"

KEYS_ANNOTATION = "inductor_tables.keys"
"""On a KernelTemplateChoice: the (device, agnostic) keys its op was looked up under."""

TABLE_ANNOTATION = "inductor_tables.entry"
"""On a KernelTemplateChoice that a table supplied: what supplied it."""


def installed_torch() -> str:
    """Return the version of the torch that is imported or would be.

    Raises:
        UnsupportedTorchError: there is none, or it is older than 2.10.
    """
    version = loaded_torch() or _distribution_version("torch")
    if version is None:
        raise UnsupportedTorchError("torch is not installed; install torch 2.10 or newer")
    if series_order(torch_series(str(version))) < series_order(OLDEST_SERIES):
        raise UnsupportedTorchError(
            f"torch {version} has no lookup table hooks; inductor-tables needs torch "
            f"{OLDEST_SERIES} or newer"
        )
    return str(version)


def loaded_torch() -> str | None:
    """Return the version of the torch that is imported, None if none is."""
    version = getattr(sys.modules.get("torch"), "__version__", None)
    return None if version is None else str(version)


def installed_series() -> TorchSeries:
    """Return the series of :func:`installed_torch`."""
    return torch_series(installed_torch())


@functools.cache
def _distribution_version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def visible_archs() -> tuple[str, ...]:
    """Return the gcnArchName of every visible GPU, in the order of their indices."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ()
    return tuple(
        torch.cuda.get_device_properties(index).gcnArchName
        for index in range(torch.cuda.device_count())
    )


# --- the choices handler of every thread ------------------------------------------------


class HandlerHook:
    """Puts ``compose(handler)`` in the place of every thread's choices handler.

    ``V.set_choices_handler`` is thread-local on all versions, and so is an assignment to
    ``config.inductor_choices_class`` from 2.12 on (``torch/utils/_config_module.py``:
    user overrides are context variables), so neither reaches a thread that has compiled.
    ``V.choices`` of every thread goes through ``_choices._get_handler``
    (``torch/_inductor/virtualized.py``), which this shadows with an instance attribute.
    """

    def __init__(self, compose: Callable[[Any], Any]) -> None:
        self._compose = compose
        self._seen = threading.local()

    def install(self) -> None:
        """Take effect now, or once torch._inductor is imported."""
        when_imported(VIRTUALIZED, self._shadow)

    def uninstall(self) -> None:
        """Give every thread back the handler it had."""
        forget_when_imported(VIRTUALIZED, self._shadow)
        virtualized = sys.modules.get(VIRTUALIZED)
        if virtualized is not None:
            vars(virtualized._choices).pop("_get_handler", None)

    def _shadow(self, virtualized: ModuleType) -> None:
        choices = virtualized._choices
        original = type(choices)._get_handler.__get__(choices)
        seen, compose = self._seen, self._compose

        def get_handler(check_poisoned: bool = True) -> Any:
            handler = original(check_poisoned)
            if not check_poisoned:  # set_choices_handler asks for what to restore later
                return handler
            if getattr(seen, "handler", None) is not handler:
                seen.composed, seen.handler = compose(handler), handler
            return seen.composed

        choices._get_handler = get_handler


def current_handler() -> Any | None:
    """Return this thread's own choices handler, None if torch._inductor is not imported."""
    virtualized = sys.modules.get(VIRTUALIZED)
    return None if virtualized is None else virtualized._choices._get_handler(False)


def composed_contributors(handler: Any) -> tuple[Any, ...]:
    """Return the handlers that 2.15's registry composed into one, () for any other handler.

    ``torch/_inductor/choices.py``, 2.15: ``_ComposedInductorChoices`` gives each hook to
    the first contributor that overrides it.
    """
    if type(handler).__name__ != "_ComposedInductorChoices":
        return ()
    return tuple(object.__getattribute__(handler, "_choices"))


def compose_contributors(handler: Any, contributors: list[Any]) -> Any:
    """Return a handler of 2.15's composed kind with other contributors."""
    return type(handler)(contributors)


# --- the keys of the FX graph and AOTAutograd caches ------------------------------------


class CacheKeyHook:
    """Adds ``token()`` to the key of every cached graph.

    Both caches hash the attributes of a ``FxGraphHashDetails``
    (``torch/_inductor/codecache.py``; ``AOTAutogradCacheDetails`` extends it). They
    never look at ``V.choices``, and the Inductor config, which they do look at, is
    thread-local from 2.12 on. A token of None leaves the key as stock torch makes it.
    """

    def __init__(self, token: Callable[[], str | None]) -> None:
        self._token = token
        self._original: Any = None

    def install(self) -> None:
        """Take effect now, or once torch._inductor is imported."""
        when_imported(CODECACHE, self._wrap)

    def uninstall(self) -> None:
        """Make keys as stock torch does again."""
        forget_when_imported(CODECACHE, self._wrap)
        codecache = sys.modules.get(CODECACHE)
        if codecache is not None and self._original is not None:
            codecache.FxGraphHashDetails.__init__ = self._original
            self._original = None

    def _wrap(self, codecache: ModuleType) -> None:
        original = self._original = codecache.FxGraphHashDetails.__init__
        token = self._token

        @functools.wraps(original)
        def init(details: Any, *args: Any, **kwargs: Any) -> None:
            original(details, *args, **kwargs)
            found = token()
            if found is not None:
                details.inductor_tables = found

        codecache.FxGraphHashDetails.__init__ = init


# --- autotuning -------------------------------------------------------------------------


def ensure_preprocessing_fn(fn: Callable[[list[Any]], list[Any]]) -> None:
    """Have ``fn(choices)`` filter the choices of every op before autotuning.

    Asked again at every look-up: ``clear_preprocessing_fns`` of a third party drops it.
    """
    fns = _selector_cache().preprocessing_fns
    if fn not in fns:
        fns.append(fn)


def discard_preprocessing_fn(fn: Callable[[list[Any]], list[Any]]) -> None:
    """Undo :func:`ensure_preprocessing_fn`."""
    if SELECT_ALGORITHM in sys.modules and fn in (fns := _selector_cache().preprocessing_fns):
        fns.remove(fn)


def add_feedback_saver(fn: Callable[..., None]) -> None:
    """Have ``fn`` called after each autotuning; once however often it is added.

    It gets 5 positional arguments on 2.10 and 6 from 2.11 on. Takes effect now, or once
    torch._inductor is imported.
    """
    _SAVERS.add(fn)
    when_imported(SELECT_ALGORITHM, _add_wanted_savers)


def remove_feedback_saver(fn: Callable[..., None]) -> None:
    """Undo :func:`add_feedback_saver`; not an error if it was never added."""
    _SAVERS.discard(fn)
    if SELECT_ALGORITHM in sys.modules and fn in (fns := _selector_cache().feedback_saver_fns):
        fns.remove(fn)


_SAVERS: set[Callable[..., None]] = set()


def _add_wanted_savers(module: ModuleType) -> None:
    fns = module.get_algorithm_selector_cache().feedback_saver_fns
    fns.extend(fn for fn in _SAVERS if fn not in fns)


def _selector_cache() -> Any:
    return sys.modules[SELECT_ALGORITHM].get_algorithm_selector_cache()


@dataclass(frozen=True, kw_only=True)
class RecordedChoice:
    """One autotuned choice as a table would hold it; ``key`` None: it cannot be keyed."""

    key: str | None
    template_id: str
    template_hash: str | None
    params: Mapping[str, Any]


def recorded_choice(choice: Any, op_name: str, *, with_device: bool) -> RecordedChoice | None:
    """Describe a ChoiceCaller; None for one without a template (subgraph choices).

    The key is the one the handler looked the op up under. Only without our handler it
    is made from the choice's inputs, which for a scaled mm differ from what a look-up
    sees (its heuristic unsqueezes the scales, ``template_heuristics/triton.py``).
    """
    ktc = getattr(choice, "annotations", {}).get("ktc")
    if ktc is None or ktc.template is None:
        return None
    keys = ktc.annotations.get(KEYS_ANNOTATION)
    if keys is not None:
        key = keys[0] if with_device else keys[1]
    else:
        from torch._inductor.lookup_table import LookupTableChoices

        key = LookupTableChoices().make_lookup_key(ktc.inputs, op_name, with_device)
    return RecordedChoice(
        key=key,
        template_id=ktc.template.uid,
        template_hash=getattr(ktc.template, "src_hash", None),
        params=ktc.params.to_serializeable_dict(),
    )


# --- inside a lowering ------------------------------------------------------------------


def current_op() -> tuple[int, int]:
    """Tell one lowered op from the next: the graph and the FX node being lowered."""
    from torch._inductor.virtualized import V

    graph = V.graph
    return id(graph), id(getattr(graph, "current_node", None))


def configured_table() -> Any:
    """Return what the user set as ``torch._inductor.config.lookup_table.table``."""
    from torch._inductor import config

    return config.lookup_table.table


def divides_statically(divisor: int, size: Any) -> bool:
    """Whether the graph guarantees that ``size`` (an int or sympy expression) is a multiple."""
    import sympy
    from torch._inductor.virtualized import V

    if isinstance(size, int | sympy.Integer):  # no need of the shape environment
        return int(size) % divisor == 0
    return bool(V.graph.sizevars.statically_known_true(sympy.Eq(sympy.Mod(size, divisor), 0)))


def reduction_size(kernel_inputs: Any) -> Any:
    """Return K of a matrix product, an int or a sympy expression."""
    return kernel_inputs.mat1mat2()[0].get_size()[-1]


def with_params(ktc: Any, params: Mapping[str, Any]) -> Any:
    """Return a KernelTemplateChoice like ``ktc`` with other parameters."""
    return type(ktc)(
        template=ktc.template,
        params=type(ktc.params)(dict(params)),
        extra_kwargs=ktc.extra_kwargs,
        layout=ktc.layout,
        inputs=ktc.inputs,
    )
