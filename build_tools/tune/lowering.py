"""Lowers one problem with Inductor and renders candidates, as a user's compile would.

This module and :mod:`build_tools.tune.kernels` are the tuner's only ones that touch torch's
private names. A graph of one op is lowered under the stock choices handler, which is watched;
a candidate is rendered from the host's own choice of its template with other parameters, the
way ``inductor_tables.handler`` serves an entry.
"""

from __future__ import annotations

import ast
import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.codecache import PyCodeCache
from torch._inductor.debug import DebugContext
from torch._inductor.exc import LoweringException
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel.mm_plus_mm import tuned_mm_plus_mm
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.select_algorithm import ExternKernelChoice, get_algorithm_selector_cache
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule

from build_tools.tune.records import EntryText
from build_tools.tune.shapes import Shape, shape_of
from build_tools.tune.space import Space, candidate
from inductor_tables import host, limits
from inductor_tables.errors import SkippedProblemError
from inductor_tables.keys import ParsedKey, TensorKey, parse_key, problem_of
from inductor_tables.parameters import merge, recordable
from inductor_tables.problems import Problem
from inductor_tables.schema import Config

log = logging.getLogger(__name__)

_EXTENDED: Final = re.compile("tma|persistent")
"""Templates that the host offers only with ``triton.enable_persistent_tma_matmul``."""

_ATEN: Final = {
    "mm": "mm", "addmm": "addmm", "bmm": "bmm", "baddbmm": "baddbmm", "int_mm": "_int_mm",
    "scaled_mm": "_scaled_mm",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a lookup key does not say, and which templates are looked at.

    Attributes:
        tma: offer persistent TMA templates, which users must switch on.
        fast_accum: ``use_fast_accum`` of scaled products.
        result: dtype of the result of scaled products.
    """

    tma: bool = True
    fast_accum: bool = True
    result: str = "bfloat16"


class _Watching(InductorChoices):
    """The stock handler; notes all choices with their lookup keys, and lets few be rendered.

    Attributes:
        noted: the host's choices as KernelTemplateChoices, in its order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: Any = LookupTableChoices()
        self.noted: list[Any] = []

    def uuid(self) -> str:
        """Return a constant: nothing that is lowered here goes into a cache."""
        return "inductor_tables.tune"

    def _finalize_template_configs(
        self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, *rest: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        chosen = super()._finalize_template_configs(
            template_choices, kernel_inputs, templates, op_name, *rest, **kwargs
        )
        keys = self._keys.make_lookup_key_variants(kernel_inputs, op_name)
        layout = kernel_inputs.output_layout(flexible=False)  # as for any autotuned op
        for ktc in chosen:
            ktc.annotations[host.KEYS_ANNOTATION] = keys
            ktc.layout = layout
        first = not self.noted
        self.noted.extend(chosen)
        return [ktc for ktc in chosen if _is_aten(ktc)] or chosen[: int(first)]


class Lowered:
    """One lowered problem: the host's choices, and more rendered on demand.

    Attributes:
        problem: the problem.
        shape: its sizes.
        tensors: the graph's inputs by name: dtype, sizes and strides of each.
        space: what may be tried.
    """

    def __init__(self, problem: Problem, device: torch.device, options: Options) -> None:
        """Lower a problem.

        Raises:
            SkippedProblemError: the op cannot be lowered so that the host asks under the
                problem's key; says why.
        """
        self.problem = problem
        try:
            self.shape: Shape = shape_of(problem)
        except ValueError as error:
            raise SkippedProblemError(str(error)) from error
        self._device, self._options = device, options
        self._mode: Any = FakeTensorMode(allow_non_fake_inputs=True)
        self._handler = _Watching()
        self.tensors = dict(graph_inputs(problem))
        self._graph = self._lower()
        self._own: dict[Config, Any] = {}
        self._bases: dict[str, Any] = {}
        for ktc in self._handler.noted:
            self._own.setdefault(_candidate_of(ktc), ktc)
            self._bases.setdefault(ktc.template.uid, ktc)
        self._check_key()
        first = next(iter(self._bases.values())).inputs
        self._product = host.product_of(first)
        # With the host's second try a kernel that does not fit is one of a single stage, which is
        # a candidate of its own: another compile for nothing, in this process (2.13 and later).
        self._limits = replace(host.device_of(first), retries_unpipelined=lambda: False)
        self.space = self._make_space()

    def render(self, config: Config) -> Any:
        """Return the choice caller of a candidate.

        Raises:
            ValueError: it cannot be rendered; says why.
        """
        ktc = self._choice(config)
        with self.context(), _only_written():
            choice = ktc.choice
        if choice is None:
            raise ValueError("the template cannot be rendered with it")
        return choice

    def entry(self, config: Config) -> EntryText:
        """Return a candidate as a recording of the host's choice would have it.

        Raises:
            ValueError: it cannot run here; says why.
        """
        ktc = self._choice(config)
        hashed = getattr(ktc.template, "src_hash", None)
        plain = {"template_id": ktc.template.uid, **recordable(ktc.params.to_serializeable_dict())}
        if hashed:
            plain["template_hash"] = hashed
        key = self._bases[config.template_id].annotations[host.KEYS_ANNOTATION][0]
        return EntryText(key=key, plain=plain)

    def _choice(self, config: Config) -> Any:
        """Return the host's own KernelTemplateChoice, or one like it."""
        if config in self._own:
            return self._own[config]
        base = self._bases.get(config.template_id)
        params = "the host has no such template here" if base is None else self._merged(config)
        if isinstance(params, str):
            raise ValueError(params)
        return host.with_params(base, params)

    def close(self) -> None:
        """Forget the sources that were rendered; torch would keep them for ever."""
        for base in self._bases.values():
            rendered = getattr(base.template, "_generated_code_cache", None)
            if rendered is not None:
                rendered.cache_clear()

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Be inside this graph's lowering."""
        with (
            DebugContext(),
            V.set_graph_handler(self._graph),
            V.set_fake_mode(self._mode),
            V.set_choices_handler(self._handler),
            settings(self._options),
        ):
            yield

    def _lower(self) -> Any:
        with self._mode:
            values = [
                torch.empty_strided(
                    key.size, key.stride, dtype=getattr(torch, key.dtype), device=self._device
                )
                for key in self.tensors.values()
            ]
        # A graph with a name would put it before those of its inputs.
        graph = GraphLowering(self._module(values), example_inputs=values, is_inference=True)
        self._graph = graph
        with self.context(), _no_autotuning():
            try:
                graph.run(*values)
            except (LoweringException, RuntimeError, AssertionError, NotImplementedError) as error:
                raise SkippedProblemError(f"cannot be lowered: {_first_line(error)}") from error
        return graph

    def _module(self, values: list[Any]) -> GraphModule:
        graph = Graph()
        nodes = []
        for name, value in zip(self.tensors, values, strict=True):
            nodes.append(graph.placeholder(name))
            nodes[-1].meta["val"] = value
        target, args, kwargs = _call(self.problem, nodes, self._options)
        result = graph.call_function(target, args, kwargs)
        with self._mode:
            try:
                result.meta["val"] = _eager(self.problem, values, self._options)
            except RuntimeError as error:
                raise SkippedProblemError(f"torch refuses it: {_first_line(error)}") from error
        graph.output((result,)).meta["val"] = (result.meta["val"],)
        return GraphModule(torch.nn.Module(), graph)

    def _check_key(self) -> None:
        """Check that it is this problem that was lowered.

        Raises:
            SkippedProblemError: no choice was offered, or under other keys only.
        """
        wanted = _problem_key(self.problem)
        keys = [ktc.annotations[host.KEYS_ANNOTATION][1] for ktc in self._bases.values()]
        asked = {str(key): problem_of(parse_key(key)) for key in keys if key is not None}
        if not self._own:
            raise SkippedProblemError("the host offers no choice for it")
        if not any(key.inputs == wanted.inputs for key in asked.values()):
            raise SkippedProblemError(f"the host asks under other keys: {', '.join(asked)}")

    def _make_space(self) -> Space:
        own = self._own
        return Space(
            shape=self.shape,
            aten=tuple(config for config, ktc in own.items() if _is_aten(ktc)),
            host=tuple(config for config in own if not _EXTENDED.search(config.template_id)),
            extended=tuple(config for config in own if _EXTENDED.search(config.template_id)),
            templates={
                uid: _candidate_of(ktc)
                for uid, ktc in self._bases.items()
                if "BLOCK_M" in ktc.params.to_kwargs()
            },
            problem=self._problem,
            hip=torch.version.hip is not None,
            warp_size=self._limits.warp_size,
        )

    def _problem(self, config: Config) -> str | None:
        merged = self._merged(config)
        return merged if isinstance(merged, str) else None

    def _merged(self, config: Config) -> dict[str, Any] | str:
        """Return all parameters of a candidate, or why it cannot run here."""
        base = self._bases[config.template_id]
        params = merge(config, base.params.to_kwargs(), self._product.divides_k)
        if isinstance(params, str):
            return params
        everything = {**base.extra_kwargs, **params}
        return limits.problem(config.template_id, everything, self._product, self._limits) or params


def _is_aten(ktc: Any) -> bool:
    return isinstance(ktc.template, ExternKernelChoice)


@contextlib.contextmanager
def settings(options: Options) -> Iterator[None]:
    """Set what decides which choices the host offers, and when; all else stays the user's."""
    found: dict[str, Any] = {
        "max_autotune_gemm": True,
        "triton.enable_persistent_tma_matmul": options.tma,
        "fx_graph_cache": False,
    }
    if hasattr(inductor_config, "pipeline_max_autotune_gemm"):  # it compiles while it renders
        found["pipeline_max_autotune_gemm"] = False
    with inductor_config.patch(found):
        yield


@contextlib.contextmanager
def _only_written() -> Iterator[None]:
    """Write a template's source without importing it here, which takes as long as rendering it.

    The host uses the name and the key of the module alone; its benchmarker imports the file when
    it has to (torch/_inductor/select_algorithm.py and autotune_process.py, 2.10 to 2.15).
    """

    def write(source: str, extra: str = "", **_options: Any) -> Any:
        key, path = PyCodeCache.write(source, extra)
        return SimpleNamespace(key=key, __file__=path)

    with mock.patch.object(PyCodeCache, "load", write):
        yield


@contextlib.contextmanager
def _no_autotuning() -> Iterator[None]:
    """Let the selector take the first choice without a benchmark."""
    selector = get_algorithm_selector_cache()
    functions = selector.preprocessing_fns
    selector.preprocessing_fns = [lambda choices: choices[:1]]
    try:
        yield
    finally:
        selector.preprocessing_fns = functions


def _candidate_of(ktc: Any) -> Config:
    return candidate(
        ktc.template.uid, getattr(ktc.template, "src_hash", None), ktc.params.to_kwargs()
    )


def _problem_key(problem: Problem) -> ParsedKey:
    return problem_of(
        ParsedKey(
            device=None, inputs=problem.inputs, scalars=problem.scalars, op_name=problem.op_name
        )
    )


def graph_inputs(problem: Problem) -> Iterator[tuple[str, TensorKey]]:
    """Yield the graph's inputs; a bias that the key shows expanded is one row, as in models."""
    for number, key in enumerate(problem.inputs):
        bias = problem.op_name == "addmm" and number == 0
        if bias and len(key.size) == 2 and key.stride[0] == 0:
            yield "arg0_1", replace(key, size=key.size[1:], stride=key.stride[1:])
        else:
            yield f"arg{number}_1", key


def _call(problem: Problem, inputs: list[Any], options: Options) -> tuple[Any, Any, Any]:
    """Return target, arguments and keyword arguments of the graph's one op."""
    if problem.op_name == "mm_plus_mm":
        return _mm_plus_mm, tuple(inputs), {}
    target = getattr(torch.ops.aten, _ATEN[problem.op_name]).default
    if problem.op_name == "scaled_mm":
        bias = inputs[4] if len(inputs) > 4 else None
        keywords = {
            "bias": bias,
            "out_dtype": getattr(torch, options.result),
            "use_fast_accum": options.fast_accum,
        }
        return target, tuple(inputs[:4]), keywords
    return target, tuple(inputs), scalars_of(problem)


def _eager(problem: Problem, inputs: list[Any], options: Options) -> Any:
    if problem.op_name == "mm_plus_mm":
        return torch.mm(inputs[0], inputs[1]) + torch.mm(inputs[2], inputs[3])
    target, args, kwargs = _call(problem, inputs, options)
    return target(*args, **kwargs)


def _mm_plus_mm(*inputs: Any) -> Any:
    return tuned_mm_plus_mm(*inputs)


_mm_plus_mm._inductor_lowering_function = True  # type: ignore[attr-defined]  # is one already


def scalars_of(problem: Problem) -> Mapping[str, Any]:
    """Return the op's numbers, ``alpha`` and ``beta``.

    Raises:
        SkippedProblemError: one of them is no number.
    """
    try:
        return {name: ast.literal_eval(text) for name, text in problem.scalars}
    except (ValueError, SyntaxError) as error:
        raise SkippedProblemError(f"a scalar is no number: {problem.scalars}") from error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:300]
