"""The one module that touches torch's private names and knows version differences.

Importing it imports no torch. Facts about the host are from the sources of torch 2.10.0,
2.11.0, 2.12.1, 2.13.0, 2.14.1 and 2.15.0, each named where it is used.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from inductor_tables._imports import forget_when_imported, when_imported
from inductor_tables.decisions import Origin
from inductor_tables.errors import UnsupportedTorchError
from inductor_tables.limits import Device, Product
from inductor_tables.parameters import recordable
from inductor_tables.versions import OLDEST_SERIES, TorchSeries, series_order, torch_series

VIRTUALIZED = "torch._inductor.virtualized"
CODECACHE = "torch._inductor.codecache"
COMPILE_FX = "torch._inductor.compile_fx"
SELECT_ALGORITHM = "torch._inductor.select_algorithm"
CHOICES = "torch._inductor.choices"

Lacking = Callable[[str], None]
"""Told the dotted name of a private part that this torch does not have."""

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

    def __init__(self, compose: Callable[[Any], Any], lacking: Lacking) -> None:
        self._compose = compose
        self._lacking = lacking
        self._seen = threading.local()

    def install(self) -> None:
        """Take effect now, or once torch._inductor is imported."""
        when_imported(VIRTUALIZED, self._shadow)

    def uninstall(self) -> None:
        """Give every thread back the handler it had."""
        forget_when_imported(VIRTUALIZED, self._shadow)
        choices: Any = getattr(sys.modules.get(VIRTUALIZED), "_choices", None)
        if choices is not None:
            choices.__dict__.pop("_get_handler", None)

    def _shadow(self, virtualized: ModuleType) -> None:
        choices: Any = getattr(virtualized, "_choices", None)
        kind: Any = type(choices)
        if not hasattr(kind, "_get_handler"):
            self._lacking(f"{VIRTUALIZED}._choices._get_handler")
            return
        original = kind._get_handler.__get__(choices)
        seen, compose = self._seen, self._compose

        def get_handler(check_poisoned: bool = True) -> Any:
            handler = original(check_poisoned)
            if not check_poisoned:  # set_choices_handler asks for what to restore later
                return handler
            if getattr(seen, "handler", None) is not handler:
                seen.composed, seen.handler = compose(handler), handler
            return seen.composed

        choices._get_handler = get_handler


class RegistryHook:
    """Adds a handler through the host's registry, which 2.15 has and later ones document.

    It is what is left where a private name is gone. It is not used otherwise: it replaces
    the handler of the calling thread, does not reach threads that have compiled, and lets
    a contributor that came earlier hide the look-ups (``_ComposedInductorChoices``). The
    host puts the handler's ``uuid()`` into the keys of cached graphs.
    """

    NAME = "inductor_tables"
    """What it is registered as."""

    def __init__(self, factory: Callable[[], Any], lacking: Lacking) -> None:
        self._factory = factory
        self._lacking = lacking

    def install(self) -> None:
        """Take effect now, or once torch._inductor is imported."""
        when_imported(CHOICES, self._register)

    def uninstall(self) -> None:
        """Take the handler out of the registry again."""
        forget_when_imported(CHOICES, self._register)
        unregister = getattr(sys.modules.get(CHOICES), "unregister_inductor_choices", None)
        if unregister is not None:
            unregister(self.NAME)

    def _register(self, choices: ModuleType) -> None:
        register = getattr(choices, "register_inductor_choices", None)
        if register is None:
            self._lacking(f"{CHOICES}.register_inductor_choices")
            return
        register(self.NAME, self._factory)


def current_handler() -> Any | None:
    """Return this thread's own choices handler, None if torch._inductor is not imported."""
    choices: Any = getattr(sys.modules.get(VIRTUALIZED), "_choices", None)
    return choices._get_handler(False) if hasattr(choices, "_get_handler") else None


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

    def __init__(self, token: Callable[[], str | None], lacking: Lacking) -> None:
        self._token = token
        self._lacking = lacking
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
        if not hasattr(codecache, "FxGraphHashDetails"):
            self._lacking(f"{CODECACHE}.FxGraphHashDetails")
            return
        original = self._original = codecache.FxGraphHashDetails.__init__
        token = self._token

        @functools.wraps(original)
        def init(details: Any, *args: Any, **kwargs: Any) -> None:
            original(details, *args, **kwargs)
            found = token()
            if found is not None:
                details.inductor_tables = found

        codecache.FxGraphHashDetails.__init__ = init


# --- the compilation of one graph --------------------------------------------------------


class CompileHook:
    """Puts ``guard(graph)`` in the place of the compilation of every graph.

    ``compile_fx_inner`` looks ``_compile_fx_inner`` up in its module at every call, on all
    versions, and that looks ``fx_codegen_and_compile`` up where no cache has the graph
    (``torch/_inductor/compile_fx.py``). The first is the least deep place from which a
    second try gets a cache key of its own; the second is where a copy has to be made, as
    the graph passes change the graph in place.
    """

    def __init__(self, guard: Callable[[GraphCompile], Any]) -> None:
        self._guard = guard
        self._originals: dict[str, Any] = {}

    def install(self) -> None:
        """Take effect now, or once torch._inductor is imported."""
        when_imported(COMPILE_FX, self._wrap)

    def uninstall(self) -> None:
        """Compile as stock torch does again."""
        forget_when_imported(COMPILE_FX, self._wrap)
        module = sys.modules.get(COMPILE_FX)
        for name, original in self._originals.items():
            setattr(module, name, original)
        self._originals.clear()

    def _wrap(self, module: ModuleType) -> None:
        inner = getattr(module, "_compile_fx_inner", None)
        codegen = getattr(module, "fx_codegen_and_compile", None)
        if inner is None or codegen is None:  # look-ups work without; nothing is tried again
            return
        guard = self._guard

        @functools.wraps(inner)
        def compile_fx_inner(*args: Any, **kwargs: Any) -> Any:
            return guard(GraphCompile(functools.partial(inner, *args, **kwargs)))

        @functools.wraps(codegen)
        def fx_codegen_and_compile(gm: Any, *args: Any, **kwargs: Any) -> Any:
            if _COMPILING.graph is not None:
                _COMPILING.graph.keep(gm, kwargs.get("cudagraphs"))
            return codegen(gm, *args, **kwargs)

        self._originals = {"_compile_fx_inner": inner, "fx_codegen_and_compile": codegen}
        module._compile_fx_inner = compile_fx_inner  # type: ignore[attr-defined]
        module.fx_codegen_and_compile = fx_codegen_and_compile  # type: ignore[attr-defined]


class GraphCompile:
    """The compilation of one graph, which can be done again."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.stock = call
        """Compile it once, keeping nothing to do it again with."""
        self._copies: list[_ModuleCopy] | None = None
        self._cudagraphs: Any = None
        self._cudagraphs_value: Any = None

    def compile(self) -> Any:
        """Compile the graph."""
        before, _COMPILING.graph = _COMPILING.graph, self
        try:
            return self.stock()
        finally:
            _COMPILING.graph = before

    def keep(self, gm: Any, cudagraphs: Any) -> None:
        """Copy what code generation is about to change: nodes, not tensors."""
        if self._copies is None:
            self._copies = [_ModuleCopy(m) for m in gm.modules() if hasattr(m, "graph")]
            self._cudagraphs = cudagraphs  # a box that code generation may switch off
            self._cudagraphs_value = getattr(cudagraphs, "value", None)

    def restore(self) -> None:
        """Make the graph what it was before it was first compiled."""
        for kept in self._copies or ():
            kept.restore()
        if hasattr(self._cudagraphs, "value"):
            self._cudagraphs.value = self._cudagraphs_value

    def deliberate(self, error: Exception) -> bool:
        """Whether an error tells Dynamo to skip a frame."""
        from torch._dynamo.exc import SkipFrame

        return isinstance(error, SkipFrame)

    def failed_source(self, error: Exception) -> str | None:
        """Return the source of the Triton kernel that ``AsyncCompile.triton`` failed with.

        It or the future that it made is on the stack, with the source in a variable of
        that name (``torch/_inductor/async_compile.py``).
        """
        source = None
        trace = error.__traceback__
        while trace is not None:
            frame, trace = trace.tb_frame, trace.tb_next
            if frame.f_globals.get("__name__") == "torch._inductor.async_compile":
                source = frame.f_locals.get("source_code", source)
        return source if isinstance(source, str) else None


class _Compiling(threading.local):
    graph: GraphCompile | None = None


_COMPILING = _Compiling()


class _ModuleCopy:
    """What a GraphModule holds, noted at a few µs a node; tensors and nodes are shared.

    The passes give a node new arguments and never change those it has
    (``torch/fx/immutable_collections.py``), so that notes of the old ones stay right.
    """

    _HELD = ("_parameters", "_buffers", "_modules")

    def __init__(self, module: Any) -> None:
        self._module, self._graph = module, module.graph
        self._nodes = [
            (node, (node.op, node.target), (node.args, node.kwargs), (node.name, node.type),
             dict(node.meta))
            for node in module.graph.nodes
        ]  # fmt: skip
        self._held = {name: dict(vars(module)[name]) for name in self._HELD}
        self._attributes = dict(vars(module))

    def restore(self) -> None:
        attributes = vars(self._module)
        for name, held in self._held.items():
            attributes[name].clear()
            attributes[name].update(held)
        for name, value in self._attributes.items():
            attributes.setdefault(name, value)
        self._module.graph = self._rebuilt()

    def _rebuilt(self) -> Any:
        from torch.fx import map_arg

        graph = type(self._graph)(tracer_cls=self._graph._tracer_cls)
        graph._codegen = self._graph._codegen
        made: dict[Any, Any] = {}
        for node, what, arguments, name, meta in self._nodes:
            mapped = (map_arg(argument, made.__getitem__) for argument in arguments)
            made[node] = graph.create_node(*what, *mapped, *name)
            made[node].meta = dict(meta)
        return graph


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
        params=recordable(ktc.params.to_serializeable_dict()),
    )


# --- what others see of it ---------------------------------------------------------------


def count(name: str) -> None:
    """Add one to a counter of ``torch._dynamo.utils.counters["inductor"]``.

    The host keeps what a graph added in its cache and adds it again for a cached graph.
    """
    from torch._dynamo.utils import counters

    counters["inductor"][name] += 1


def trace(name: str, payload: Callable[[], Any]) -> None:
    """Add an artifact to the structured trace of the graph that is compiled (``tlparse``)."""
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "json"},
        payload_fn=lambda: json.dumps(payload(), indent=1),
    )


# --- inside a lowering ------------------------------------------------------------------


@functools.cache
def _virtualized() -> Any:
    from torch._inductor.virtualized import V

    return V


def current_op() -> tuple[int, int]:
    """Tell one lowered op from the next: the graph and the FX node being lowered."""
    graph = _virtualized().graph
    return id(graph), id(getattr(graph, "current_node", None))


def current_origin() -> Origin:
    """Return where the FX node that is being lowered comes from in the user's model.

    An addition that a pass fused into a product leaves its own origin on the result, or none
    (2.11); the product's is that of the transposed weight, which lies deeper in the same module
    (``torch/_inductor/fx_passes/post_grad.py``).
    """
    node: Any = getattr(_virtualized().graph, "current_node", None)
    meta = getattr(node, "meta", {})
    modules, line = _modules(meta), _last_line(meta)
    if not modules or str(meta.get("original_aten")) == "aten.add.Tensor":
        weights = [_modules(n.meta) for n in node.all_input_nodes if _is_transposed(n)]
        deeper = [found for found in weights if found[: len(modules)] == modules]
        modules = max([modules, *deeper], key=len)
    if not modules:
        return Origin(module=None, line=line)
    path, kind = modules[-1]
    own = None if line else getattr(kind, "__name__", None)  # the model itself has no path
    return Origin(module=_module_path(path) or own, line=line)


def _modules(meta: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return path and class of the modules that an FX node comes from, the innermost last.

    AOTAutograd gives nodes of a backward graph what their forward ones had, under
    ``fwd_nn_module_stack`` (``torch/_functorch/_aot_autograd/utils.py``).
    """
    found = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    return [(path, kind) for path, kind, *_ in found.values()]


def _is_transposed(node: Any) -> bool:
    return str(node.meta.get("original_aten")) in {"aten.t.default", "aten.transpose.int"}


def _module_path(text: str) -> str | None:
    """Return ``layers.0.up`` for Dynamo's ``L['self'].layers.0.up`` and the like.

    ``L['args'][0]`` is the model too, where a decorator wraps its ``forward``.
    """
    path = re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", text)
    path = re.sub(r"^(?:L\.args\.0\b\.?|L\.\w+\.?|G\.)", "", path).replace("._modules.", ".")
    return path.removeprefix("_modules.") or None


def _last_line(meta: Mapping[str, Any]) -> str | None:
    """Return ``file:line`` of the innermost frame of a node's stack trace that is not torch's."""
    frames = re.findall(r'File "([^"\n]+)", line (\d+)', meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_torch_folder())]
    return ":".join(own[-1]) if own else None


@functools.cache
def _torch_folder() -> str:
    import torch

    return str(torch.__file__).removesuffix("__init__.py")


def hinted(kernel_inputs: Any) -> Any:
    """Return kernel inputs that know their hints, where every size is a number.

    The host asks its shape environment for each size and stride, a number or not, which
    is most of what making a key costs.
    """
    try:
        shapes = tuple(map(_numbers, kernel_inputs.shapes_symbolic()))
        strides = tuple(map(_numbers, kernel_inputs.strides_symbolic()))
    except _NotANumberError:
        return kernel_inputs
    return _Hinted(kernel_inputs, shapes, strides)


class _NotANumberError(TypeError):
    """A size or stride of the graph is an expression."""


def _numbers(sizes: Any) -> tuple[int, ...]:
    kinds = _number_types()
    for size in sizes:
        if not isinstance(size, kinds):
            raise _NotANumberError
    return tuple([int(size) for size in sizes])


@functools.cache
def _number_types() -> Any:
    import sympy

    return int, sympy.Integer


class _Hinted:
    """Kernel inputs all of whose sizes are numbers."""

    def __init__(
        self,
        kernel_inputs: Any,
        shapes: tuple[tuple[int, ...], ...],
        strides: tuple[tuple[int, ...], ...],
    ) -> None:
        self._kernel_inputs = kernel_inputs
        self._shapes, self._strides = shapes, strides

    def shapes_hinted(self) -> tuple[tuple[int, ...], ...]:
        """Return the sizes of each input."""
        return self._shapes

    def strides_hinted(self) -> tuple[tuple[int, ...], ...]:
        """Return the strides of each input."""
        return self._strides

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel_inputs, name)


def configured_table() -> Any:
    """Return what the user set as ``torch._inductor.config.lookup_table.table``."""
    from torch._inductor import config

    return config.lookup_table.table


def divides_statically(divisor: int, size: Any) -> bool:
    """Whether the graph guarantees that ``size`` (an int or sympy expression) is a multiple."""
    if isinstance(size, _number_types()):  # no need of the shape environment
        return bool(int(size) % divisor == 0)
    import sympy

    return bool(
        _virtualized().graph.sizevars.statically_known_true(sympy.Eq(sympy.Mod(size, divisor), 0))
    )


def exceeds_statically(size: Any, bound: int) -> bool:
    """Whether the graph guarantees that ``size`` (an int or sympy expression) is larger."""
    if isinstance(size, _number_types()):
        return bool(int(size) > bound)
    import sympy

    return bool(_virtualized().graph.sizevars.statically_known_true(sympy.Lt(bound, size)))


def product_of(kernel_inputs: Any) -> Product:
    """Describe a matrix product."""
    first, second = kernel_inputs.mat1mat2()
    k = first.get_size()[-1]
    return Product(
        element_size=max(first.get_dtype().itemsize, second.get_dtype().itemsize),
        output_size=kernel_inputs.out_dtype().itemsize,
        divides_k=lambda divisor: divides_statically(divisor, k),
        less_than_k=lambda bound: exceeds_statically(k, bound),
        aligned=lambda: _starts_aligned(first) and _starts_aligned(second),
        no_vector=lambda: all(
            exceeds_statically(size, 1) for size in (*first.get_size()[-2:], second.get_size()[-1])
        ),
    )


def _starts_aligned(operand: Any) -> bool:
    """Whether the graph itself moves an operand by whole 16 bytes only, or not at all."""
    offset = getattr(operand.get_layout(), "offset", 0)
    return divides_statically(16, offset * operand.get_dtype().itemsize)


def device_of(kernel_inputs: Any) -> Device:
    """Return the limits of the device that an op runs on.

    As ``_get_exceeding_shared_memory_checker`` reads them
    (``torch/_inductor/template_heuristics/triton.py``): ROCm has no opt-in limit.
    """
    import torch

    properties = torch.cuda.get_device_properties(kernel_inputs.device())
    return _device(
        getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block),
        getattr(properties, "max_threads_per_block", 1024),
        properties.warp_size,
        (properties.major, properties.minor),
        torch.version.hip is not None,
    )


@functools.lru_cache(maxsize=16)
def _device(
    shared_memory: int, threads: int, warp_size: int, capability: tuple[int, int], hip: bool
) -> Device:
    import triton

    release = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return Device(
        shared_memory=shared_memory,
        threads=threads,
        warp_size=warp_size,
        capability=capability,
        hip=hip,
        tma_stores_in_loop=installed_series() == "2.10",
        scratch_per_thread=512 if release < (3, 7) else 128,
        retries_unpipelined=_retries_unpipelined,
    )


def _retries_unpipelined() -> bool:
    from torch._inductor import config

    return bool(getattr(config.triton, "dynamic_disable_pipelining", False))


def with_params(ktc: Any, params: Mapping[str, Any]) -> Any:
    """Return a KernelTemplateChoice like ``ktc`` with other parameters."""
    return type(ktc)(
        template=ktc.template,
        params=type(ktc.params)(dict(params)),
        extra_kwargs=ktc.extra_kwargs,
        layout=ktc.layout,
        inputs=ktc.inputs,
    )
