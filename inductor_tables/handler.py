"""The choices handler: look-ups in front of what Inductor would do.

Importing this module imports torch._inductor; the first compile does.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch._inductor.choices import InductorChoices
from torch._inductor.lookup_table import LookupTableChoices

from inductor_tables import config, host, limits, recovery
from inductor_tables.activation import Activation, active_activation
from inductor_tables.errors import ForeignHandlerError, InvalidTableError, NoTableError
from inductor_tables.parameters import merge
from inductor_tables.resources import Candidate
from inductor_tables.schema import Config, Entry

Keys = tuple[str | None, str | None]
"""The device-specific and the device-agnostic lookup key of an op."""


@dataclass
class _Op:
    """The op this thread is lowering: one addmm calls the handler several times."""

    identity: tuple[int, int]
    keys: Keys = (None, None)
    source: tuple[str, str] = ("", "")
    """The table that was found to hold the op, and the key that it holds it under."""
    hit: Keys | None = None
    answered: bool = False


class _State(threading.local):
    op: _Op | None = None
    look: bool = True


_STATE = _State()


def _active() -> Activation | None:
    """Return what this thread may look up in now, None if it may not."""
    return active_activation() if _STATE.look and recovery.looking() else None


class TableChoices(LookupTableChoices):
    """Answers from the tables that are enabled; where they have no answer, steps aside.

    The host's override points work in a subclass as they do in its own handler:
    ``make_lookup_key``, ``make_lookup_key_variants``, ``_entry_is_valid``,
    ``lookup_template_configs``, ``_fallback`` (``torch/_inductor/lookup_table/choices.py``).
    """

    def uuid(self) -> str:
        """Return what identifies the tables in use, for the host's cache keys."""
        activation = active_activation()
        return (activation and activation.token()) or ""

    def get_template_configs(
        self,
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> list[Any]:
        """Return the ChoiceCallers of one call, from a table where it has an answer.

        If none of a table's choices can be rendered, the stock ones are returned.
        """
        call = super().get_template_configs
        activation = _active()
        if activation is None:
            return list(call(kernel_inputs, templates, op_name, kwarg_overrides))
        op = _current_op()
        before, op.hit = op.hit, None
        try:
            choices = list(call(kernel_inputs, templates, op_name, kwarg_overrides))
        except Exception as error:
            if op.hit is None:  # not ours: no choice of this call came from a table
                raise
            activation.swallow(error, f"a choice for {op.hit[0]} could not be rendered")
            choices = []
        if op.hit is None or choices:
            op.answered = op.answered or op.hit is not None
            op.hit = op.hit or before
            return choices
        activation.statistics.dropped("the template could not be rendered", op.hit[0] or "")
        op.hit = before
        return _looking_away(call, kernel_inputs, templates, op_name, kwarg_overrides)

    def make_lookup_key_variants(self, kernel_inputs: Any, op_name: str) -> Keys:
        """Return both keys of an op; the part they share, which the host makes twice, once."""
        if type(self).make_lookup_key is not LookupTableChoices.make_lookup_key:
            keys: Keys = super().make_lookup_key_variants(kernel_inputs, op_name)
            return keys
        agnostic = self.make_lookup_key(kernel_inputs, op_name, include_device=False)
        if agnostic is None:
            return None, None
        return f"{self._get_device_key(kernel_inputs.device())}+{agnostic}", agnostic

    def lookup_template_configs(
        self,
        kernel_inputs: Any,
        op_name: str,
        template_uids: list[str],
        template_hash_map: dict[str, str | None] | None = None,
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the usable entries of the op's key by template, {} where there are none.

        What the user set in ``torch._inductor.config.lookup_table.table`` goes first.
        """
        activation = _active()
        found: dict[str, list[dict[str, Any]]] = {}
        if self._get_lookup_table() or activation is None:
            found = super().lookup_template_configs(
                kernel_inputs, op_name, template_uids, template_hash_map
            )
        if found or activation is None:
            return found
        arch = self._get_device_key(kernel_inputs.device())
        if arch is None:  # not a device that tables are for
            return {}
        op = _current_op()
        op.keys = self.make_lookup_key_variants(kernel_inputs, op_name)
        entries, op.source = _matches(activation, arch, op.keys)
        _, key = op.source
        for entry in entries:
            if self._usable(entry, key, template_uids, template_hash_map or {}, activation):
                plain = dict(entry.config.plain)
                found.setdefault(str(plain.pop("template_id")), []).append(plain)
        return found

    def _usable(
        self,
        entry: Entry,
        key: str,
        template_uids: Sequence[str],
        hashes: dict[str, str | None],
        activation: Activation,
    ) -> bool:
        template_id, recorded = entry.config.template_id, entry.config.template_hash
        installed = hashes.get(template_id)
        failure = recovery.failure_of(key, entry.config)
        if failure is not None:
            reason = f"{template_id} failed in this process: {failure}"
        elif template_id not in template_uids:
            reason = f"{template_id} is not offered here (is max_autotune_gemm on?)"
        elif config.check_src_hash and recorded and installed and recorded != installed:
            reason = (
                f"{template_id} has changed: recorded {recorded[:12]}, installed {installed[:12]}"
            )
        elif config.check_src_hash and not self._entry_is_valid(
            dict(entry.config.plain), template_id, hashes
        ):
            reason = f"{template_id} is refused by _entry_is_valid"
        else:
            return True
        activation.statistics.dropped(reason, key)
        return False

    def _finalize_template_configs(
        self,
        template_choices: dict[str, Iterator[Any]],
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> list[Any]:
        """Return the KernelTemplateChoices of one call of the op."""
        activation = _active()
        chosen = []
        if activation is not None:
            chosen = self._answer(activation, template_choices, kernel_inputs, templates, op_name)
            if not chosen and _current_op().answered:
                return []  # another call of this op was answered: nothing to add to it
        if not chosen:
            chosen = _looking_away(
                super()._finalize_template_configs,
                template_choices,
                kernel_inputs,
                templates,
                op_name,
                kwarg_overrides,
            )
        if config.recording_active:
            self._annotate(chosen, kernel_inputs, op_name)
        return chosen

    def _annotate(self, chosen: list[Any], kernel_inputs: Any, op_name: str) -> None:
        """Have what is autotuned recorded under the keys that look-ups use."""
        from inductor_tables.recorder import record_topk_choices

        host.add_feedback_saver(record_topk_choices)
        keys = self.make_lookup_key_variants(kernel_inputs, op_name)
        for ktc in chosen:
            ktc.annotations[host.KEYS_ANNOTATION] = keys

    def _answer(
        self,
        activation: Activation,
        template_choices: dict[str, Iterator[Any]],
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
    ) -> list[Any]:
        """Return a table's choices, [] where it has none; the one boundary of a look-up."""
        try:
            host.ensure_preprocessing_fn(keep_table_choices)
            hashes = {t.uid: getattr(t, "src_hash", None) for t in templates}
            op = _current_op()
            op.keys = (None, None)
            found = self.lookup_template_configs(kernel_inputs, op_name, list(hashes), hashes)
            if found and op.keys == (None, None):  # the user's own table, the host's own rules
                return self._host_choices(found, templates, kernel_inputs, op_name, op)
            chosen = self._choices_of(
                activation, found, template_choices, kernel_inputs, op.source[1]
            )
            op.hit = op.keys if chosen else op.hit
        except NoTableError:  # strict: the user asked for it
            raise
        except Exception as error:  # noqa: BLE001 - a table never ends the user's compile
            activation.swallow(error, f"looking {op_name} up failed")
            return []
        return chosen

    def _host_choices(
        self,
        found: dict[str, list[dict[str, Any]]],
        templates: list[Any],
        kernel_inputs: Any,
        op_name: str,
        op: _Op,
    ) -> list[Any]:
        """Make the choices of ``config.lookup_table.table`` exactly as the host does."""
        chosen = list(self._create_lookup_choices(found, templates, kernel_inputs, op_name))
        for ktc in chosen:
            ktc.annotations[host.TABLE_ANNOTATION] = "torch._inductor.config.lookup_table.table"
        op.keys = self.make_lookup_key_variants(kernel_inputs, op_name)
        op.hit = op.keys if chosen else op.hit
        return chosen

    def _choices_of(
        self,
        activation: Activation,
        found: dict[str, list[dict[str, Any]]],
        template_choices: dict[str, Iterator[Any]],
        kernel_inputs: Any,
        key: str,
    ) -> list[Any]:
        """Make the choices that entries stand for; what cannot run here is dropped.

        Unlike the host's ``_create_lookup_choices`` this keeps ``kwarg_overrides`` (an
        out_dtype, fast accumulation) and takes from an entry only what is a table's to
        decide, the same on every version (2.10 and 2.11 replace all parameters).
        """
        resource, _ = _current_op().source
        chosen: list[Any] = []
        if not found:
            return chosen
        place = host.product_of(kernel_inputs), host.device_of(kernel_inputs)
        for template_id, entries in found.items():
            offered = template_choices[template_id]
            base = next(offered, None)
            if base is None:
                reason = f"{template_id}: the host has no configuration of it for this graph"
                activation.statistics.dropped(reason, key)
                continue
            template_choices[template_id] = itertools.chain([base], offered)
            for plain in entries:
                ktc = _with_entry(base, template_id, plain, place)
                if not isinstance(ktc, str):
                    recovery.note(resource, key, ktc.annotations[host.TABLE_ANNOTATION])
                    chosen.append(ktc)
                else:
                    activation.statistics.dropped(f"{template_id}: {ktc}", key)
        return chosen


def _with_entry(
    base: Any, template_id: str, plain: dict[str, Any], place: tuple[limits.Product, limits.Device]
) -> Any:
    """Return ``base`` with an entry's parameters, or why the entry cannot run here."""
    template_hash = plain.pop("template_hash", None)
    entry = Config(
        template_id=template_id, template_hash=template_hash, params=tuple(sorted(plain.items()))
    )
    product, device = place
    params = merge(entry, base.params.to_kwargs(), product.divides_k)
    if isinstance(params, str):
        return params
    problem = limits.problem(template_id, {**base.extra_kwargs, **params}, product, device)
    if problem is not None:
        return problem
    ktc = host.with_params(base, params)
    ktc.annotations[host.TABLE_ANNOTATION] = entry
    return ktc


def _matches(
    activation: Activation, arch: str, keys: Keys
) -> tuple[Sequence[Entry], tuple[str, str]]:
    """Return the entries of the first table that has the op's key, with its name and that key."""
    for candidate in activation.candidates(arch):
        for key in _key_forms(candidate, keys):
            try:
                entries = candidate.table.lookup(key)
            except InvalidTableError as error:
                activation.forget(candidate, error)
                break
            if entries:
                return entries, (candidate.table.resource, key)
    return (), ("", "")


def _key_forms(candidate: Candidate, keys: Keys) -> list[str]:
    device_key, agnostic_key = keys
    if candidate.level == "base":
        return [f"{candidate.table.header.arch}+{agnostic_key}"]
    if candidate.level == "agnostic":
        device_key = None
    return [key for key in (device_key, agnostic_key) if key is not None]


def keep_table_choices(choices: list[Any]) -> list[Any]:
    """Keep a table's choices alone where an op has any, and count the op.

    The host calls it with all choices of an op, whichever of its calls of the handler
    they came from, right before it would autotune (``AlgorithmSelectorCache.__call__``).
    """
    op, _STATE.op = _STATE.op, None
    from_table = [c for c in choices if _annotated(c)]
    activation = active_activation()
    if activation is None:
        return choices
    if op is not None and op.keys[0] is not None:
        activation.statistics.op(hit=bool(from_table), key=(op.hit or op.keys)[0] or "")
    return from_table or choices


def _annotated(choice: Any) -> bool:
    return host.TABLE_ANNOTATION in getattr(choice, "annotations", {})


def _current_op() -> _Op:
    identity = host.current_op()
    if _STATE.op is None or _STATE.op.identity != identity:
        _STATE.op = _Op(identity)
    return _STATE.op


def _looking_away(call: Callable[..., list[Any]], *args: Any) -> list[Any]:
    """Call the host with look-ups off: what is under us decides alone."""
    before, _STATE.look = _STATE.look, False
    try:
        return list(call(*args))
    finally:
        _STATE.look = before


def compose(handler: Any) -> Any:
    """Return a handler that looks up first and leaves all else to ``handler``.

    Raises:
        ForeignHandlerError: the handler's class cannot be extended.
    """
    if isinstance(handler, TableChoices):
        return handler
    if type(handler) in (InductorChoices, LookupTableChoices):
        return TableChoices()
    contributors = host.composed_contributors(handler)
    if contributors:
        return host.compose_contributors(handler, _with_look_ups(contributors))
    return _extend(handler)


def _extend(handler: Any) -> Any:
    """Return an instance of a class that puts look-ups before the handler's own methods."""
    foreign = type(handler)
    try:
        extended = type(f"{foreign.__name__}WithTables", (TableChoices, foreign), {})
        composed: Any = object.__new__(extended)
        composed.__dict__ = handler.__dict__  # one state, whoever changes it
    except (TypeError, AttributeError) as error:
        raise ForeignHandlerError(
            f"the choices handler {foreign.__module__}.{foreign.__qualname__} is in charge and "
            f"cannot be extended with look-ups ({error}); tables are not used under it. Unset it "
            "(V.set_choices_handler, config.inductor_choices_class) or make it a plain subclass "
            "of InductorChoices"
        ) from error
    return composed


def _with_look_ups(contributors: tuple[Any, ...]) -> list[Any]:
    """Extend the contributor that decides on template configurations, or add one that does."""
    if any(isinstance(c, TableChoices) for c in contributors):
        return list(contributors)
    hook = "_finalize_template_configs"
    for number, contributor in enumerate(contributors):
        if getattr(type(contributor), hook) is not getattr(InductorChoices, hook):
            return [*contributors[:number], _extend(contributor), *contributors[number + 1 :]]
    return [TableChoices(), *contributors]
