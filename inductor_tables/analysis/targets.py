"""What a person names on the command line, as calls of models that can be lowered.

A target is code: it is imported, or loaded as ``torch.export.load`` loads it. Nothing of it runs on
a device, and as far as it asks torch for new tensors, they are on the meta device and hold nothing.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from inductor_tables.errors import InductorTablesError, TargetError

Model = Callable[..., Any]
"""A module or a function, as ``torch.compile`` takes it."""

FORMS = (
    "'package.module:callable', the path of a .pt2 file of torch.export.save, or the path of a "
    "Hugging Face config.json"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a person asks of every target.

    Attributes:
        tokens: token counts, each lowered for itself; empty: the target's own choice.
        dtype: name of the type that floating-point tensors get, None: they stay as they are.
        backward: the backward graph is wanted too.
    """

    tokens: tuple[int, ...] = ()
    dtype: str | None = None
    backward: bool = False


@dataclass(frozen=True, kw_only=True)
class DynamicSize:
    """A size of an input that a model was exported for a range of.

    Attributes:
        leaf: which tensor of the inputs, in order.
        dim: which of its sizes.
        least, most: the range, None where it has no such end.
    """

    leaf: int
    dim: int
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of a model. Its tensors may be on any device: they are read for their layout.

    Attributes:
        name: for people; the target, and the token count where there are several.
        model: a module or a function.
        args, kwargs: what it is called with.
        dtype: the type that floating-point tensors get, None: they stay as they are.
        dynamic: sizes that are not fixed whatever else is asked for.
    """

    name: str
    model: Model
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    dynamic: tuple[DynamicSize, ...] = ()


def load(target: str, options: Options) -> list[Case]:
    """Return the calls that a target stands for, one for each token count.

    A callable of a module (dotted, in the import path or the current directory) is called with the
    meta device as default and returns ``(model, inputs)`` or ``(model, args, kwargs)``; ``inputs``
    is a tuple or list of arguments, a dict of keyword arguments, or the only argument. It gets
    ``tokens`` if token counts are asked for.

    Raises:
        TargetError: it is none of the known forms, cannot be loaded, or is not what it must be.
    """
    if target.endswith(".pt2"):
        from inductor_tables.analysis.exported import exported_cases

        return exported_cases(_file(target), target, options)
    if target.endswith(".json") or Path(target, "config.json").is_file():
        from inductor_tables.analysis.hugging_face import configured_cases

        path = Path(target)
        return configured_cases(
            path / "config.json" if path.is_dir() else _file(target), target, options
        )
    return _called_cases(target, options)


def _file(target: str) -> Path:
    path = Path(target)
    if not path.is_file():
        raise TargetError(f"{target}: there is no such file (looked in {Path.cwd()})")
    return path


def dtype_of(name: str | None) -> torch.dtype | None:
    """Return the floating-point type of a name such as ``bfloat16``; None for None.

    Raises:
        TargetError: torch has no such type.
    """
    if name is None:
        return None
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise TargetError(
            f"dtype {name!r}: torch has no such floating-point type; for example bfloat16, "
            "float16, float32"
        )
    return found


# --- package.module:callable ------------------------------------------------------------


def _called_cases(target: str, options: Options) -> list[Case]:
    build = _callable(target)
    takes = _takes_tokens(target, build, bool(options.tokens))
    dtype = dtype_of(options.dtype)
    given: list[dict[str, int]] = [{"tokens": n} for n in options.tokens] if takes else [{}]
    cases = []
    for keywords in given:
        model, args, kwargs = _checked(target, _call(target, build, keywords))
        name = f"{target} tokens={keywords['tokens']}" if keywords else target
        cases.append(Case(name=name, model=model, args=args, kwargs=kwargs, dtype=dtype))
    return cases


def _callable(target: str) -> Callable[..., Any]:
    module_name, colon, attribute = target.partition(":")
    if not (colon and module_name and attribute):
        raise TargetError(f"target {target!r} is none of: {FORMS}")
    if any(not part.isidentifier() for part in module_name.split(".")):
        raise TargetError(
            f"target {target!r}: {module_name!r} is no module's name; write one as in an import, "
            "'folder.file:callable' for folder/file.py"
        )
    module = _import(target, module_name)
    try:
        found = operator.attrgetter(attribute)(module)
    except AttributeError:
        names = ", ".join(sorted(n for n in _functions(module) if not n.startswith("_")))
        raise TargetError(
            f"target {target!r}: module {module_name} has no {attribute!r}; its functions: "
            f"{names or 'none'}"
        ) from None
    if not callable(found) or isinstance(found, torch.nn.Module):
        raise TargetError(
            f"target {target!r} is no function that returns a model and its inputs, but of type "
            f"{type(found).__name__}"
        )
    made: Callable[..., Any] = found
    return made


def _functions(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]


def _import(target: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            _refuse(target, f"importing {name} raised", error)
        raise TargetError(
            f"target {target!r}: there is no module {error.name!r} in the import path, which "
            f"begins with {here}"
        ) from error
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the person's code raises
        _refuse(target, f"importing {name} raised", error)


def _takes_tokens(target: str, build: Callable[..., Any], asked: bool) -> bool:
    """Whether the callable is to be called with ``tokens``.

    Raises:
        TargetError: it takes none although some are asked for, or needs what it does not get.
    """
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return asked
    kinds = {p.kind for p in parameters}
    takes = any(p.name == "tokens" and p.kind is not p.POSITIONAL_ONLY for p in parameters)
    takes = takes or inspect.Parameter.VAR_KEYWORD in kinds
    if asked and not takes:
        raise TargetError(
            f"target {target!r} has no parameter 'tokens' and cannot be called for token counts; "
            "add one, or leave --tokens out"
        )
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    lacking = [name for name in needed if not (asked and name == "tokens")]
    if lacking == ["tokens"]:
        raise TargetError(
            f"target {target!r} needs 'tokens': give token counts, such as --tokens 1,512"
        )
    if lacking:
        raise TargetError(
            f"target {target!r} cannot be called: it needs {', '.join(lacking)}; only 'tokens' is "
            "ever given"
        )
    return takes and asked


def _call(target: str, build: Callable[..., Any], keywords: Mapping[str, int]) -> Any:
    try:
        with torch.device("meta"):
            return build(**keywords)
    except InductorTablesError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the person's code raises
        given = ", ".join(f"{name}={value}" for name, value in keywords.items())
        _refuse(target, f"calling it with ({given}) raised", error)


def _checked(target: str, returned: Any) -> tuple[Model, tuple[Any, ...], dict[str, Any]]:
    expected = "expected (model, inputs) or (model, args, kwargs)"
    if not isinstance(returned, tuple | list) or len(returned) not in {2, 3}:
        found = type(returned).__name__
        if isinstance(returned, tuple | list):
            found = f"a {found} of {len(returned)}"
        raise TargetError(f"target {target!r} returned {found}; {expected}")
    model, inputs, *rest = returned
    if not callable(model):
        raise TargetError(
            f"target {target!r} returned as model a {type(model).__name__}, which is no module and "
            f"no function; {expected}"
        )
    if rest:
        if not isinstance(inputs, tuple | list) or not isinstance(rest[0], Mapping | None):
            found = f"{type(inputs).__name__} and {type(rest[0]).__name__}"
            raise TargetError(
                f"target {target!r} returned as args and kwargs {found}; expected a tuple and a "
                "dict"
            )
        return model, tuple(inputs), dict(rest[0] or {})
    if isinstance(inputs, Mapping):
        return model, (), dict(inputs)
    return model, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


def _refuse(target: str, what: str, error: BaseException) -> NoReturn:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    raise TargetError(
        f"target {target!r}: {what} {type(error).__name__}: {error}{where}"
    ) from error
