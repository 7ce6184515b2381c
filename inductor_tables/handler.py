"""The choices handler: look-ups in front of what Inductor would do.

Importing this module imports torch._inductor; the first compile does.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch._inductor.choices import InductorChoices
from torch._inductor.lookup_table import LookupTableChoices

from inductor_tables import config, host, limits, recovery
from inductor_tables.activation import Activation, active_activation
from inductor_tables.decisions import Decision, Dropped, Outcome
from inductor_tables.errors import ForeignHandlerError, InvalidTableError, NoTableError
from inductor_tables.keys import other_spellings
from inductor_tables.parameters import merge
from inductor_tables.resources import Candidate
from inductor_tables.schema import NOT_PARAMS, Config, Entry, Source

Keys = tuple[str | None, str | None]
"""The device-specific and the device-agnostic lookup key of an op."""

USERS_TABLE: Final = "torch._inductor.config.lookup_table.table"
"""What stands for a table's name where the user set the host's own."""


_DEEPEST: Final = 8
"""How deep graphs are lowered within graphs at most."""


@dataclass
class _Op:
    """The op this thread is lowering: one addmm calls the handler several times."""

    identity: tuple[int, int]
    keys: Keys = (None, None)
    source: tuple[str, str] = ("", "")
    """The table that was found to hold the op, and the key that it holds it under."""
    hit: Keys | None = None
    answered: bool = False
    dropped: list[Dropped] = field(default_factory=list)
    outer: _Op | None = None
    """The op of the graph that lowers this one's graph, a choice of that op."""
    depth: int = 0

    def drop(self, template_id: str, reason: str) -> None:
        """Note an entry that is not used."""
        self.dropped.append(Dropped(template_id=template_id, reason=reason))


@dataclass(frozen=True)
class _Served:
    """What a choice of ours says of itself: the entry, its table, the key there."""

    entry: Entry
    resource: str
    key: str


class _Plain(dict[str, Any]):
    """An entry in the host's plain form that knows the entry."""

    entry: Entry


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
        op.drop("all templates", "the template could not be rendered")
        op.hit = before
        return _looking_away(call, kernel_inputs, templates, op_name, kwarg_overrides)

    def make_lookup_key_variants(self, kernel_inputs: Any, op_name: str) -> Keys:
        """Return both keys of an op; the part they share, which the host makes twice, once."""
        if type(self).make_lookup_key is not LookupTableChoices.make_lookup_key:
            keys: Keys = super().make_lookup_key_variants(kernel_inputs, op_name)
            return keys
        hinted = host.hinted(kernel_inputs)
        agnostic = self.make_lookup_key(hinted, op_name, include_device=False)
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
        for entry in entries:
            template_id = entry.config.template_id
            reason = self._unusable(entry, op.source[1], template_uids, template_hash_map or {})
            if reason is not None:
                op.drop(template_id, reason)
                continue
            plain = _Plain(entry.config.plain)
            plain.entry = entry
            del plain["template_id"]
            found.setdefault(template_id, []).append(plain)
        return found

    def _unusable(
        self,
        entry: Entry,
        key: str,
        template_uids: Sequence[str],
        hashes: dict[str, str | None],
    ) -> str | None:
        """Return why an entry is not to be used, None if it is."""
        template_id, recorded = entry.config.template_id, entry.config.template_hash
        installed = hashes.get(template_id)
        failure = recovery.failure_of(key, entry.config)
        if failure is not None:
            return f"failed in this process: {failure}"
        if template_id not in template_uids:
            return "not offered here (is max_autotune_gemm on?)"
        if not config.check_src_hash:
            return None
        if recorded and installed and recorded != installed:
            return f"the template has changed: recorded {recorded[:12]}, installed {installed[:12]}"
        if type(self)._entry_is_valid is LookupTableChoices._entry_is_valid:
            return None  # it would compare the hashes once more
        valid = self._entry_is_valid(dict(entry.config.plain), template_id, hashes)
        return None if valid else "refused by _entry_is_valid"

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
            chosen = self._choices_of(found, template_choices, kernel_inputs)
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
            ktc.annotations[host.TABLE_ANNOTATION] = USERS_TABLE
        op.keys = self.make_lookup_key_variants(kernel_inputs, op_name)
        op.hit = op.keys if chosen else op.hit
        return chosen

    def _choices_of(
        self,
        found: dict[str, list[dict[str, Any]]],
        template_choices: dict[str, Iterator[Any]],
        kernel_inputs: Any,
    ) -> list[Any]:
        """Make the choices that entries stand for; what cannot run here is dropped.

        Unlike the host's ``_create_lookup_choices`` this keeps ``kwarg_overrides`` (an
        out_dtype, fast accumulation) and takes from an entry only what is a table's to
        decide, the same on every version (2.10 and 2.11 replace all parameters).
        """
        op = _current_op()
        resource, key = op.source
        chosen: list[Any] = []
        if not found:
            return chosen
        place = host.product_of(kernel_inputs), host.device_of(kernel_inputs)
        for template_id, entries in found.items():
            offered = template_choices[template_id]
            base = next(offered, None)
            if base is None:
                op.drop(template_id, "the host has no configuration of it for this graph")
                continue
            template_choices[template_id] = itertools.chain([base], offered)
            for plain in entries:
                entry = self._entry_of(template_id, plain)
                ktc = _with_entry(base, entry.config, place)
                if isinstance(ktc, str):
                    op.drop(template_id, ktc)
                    continue
                ktc.annotations[host.TABLE_ANNOTATION] = _Served(entry, resource, key)
                recovery.note(resource, key, entry.config)
                chosen.append(ktc)
        return chosen

    def _entry_of(self, template_id: str, plain: dict[str, Any]) -> Entry:
        """Return the entry of a plain one that ``lookup_template_configs`` gave.

        A subclass may have made or changed it, which leaves nothing recorded of it.
        """
        own = type(self).lookup_template_configs is TableChoices.lookup_template_configs
        if own and isinstance(plain, _Plain):
            return plain.entry
        params = tuple(sorted((n, v) for n, v in plain.items() if n not in NOT_PARAMS))
        template_hash = plain.get("template_hash")
        made = Config(template_id=template_id, template_hash=template_hash, params=params)
        return Entry(config=made, time_ns=None, source=Source(dump_digest=""))


def _with_entry(base: Any, entry: Config, place: tuple[limits.Product, limits.Device]) -> Any:
    """Return ``base`` with an entry's parameters, or why the entry cannot run here."""
    product, device = place
    params = merge(entry, base.params.to_kwargs(), product.divides_k)
    if isinstance(params, str):
        return params
    template_id = entry.template_id
    problem = limits.problem(template_id, {**base.extra_kwargs, **params}, product, device)
    return host.with_params(base, params) if problem is None else problem


def _matches(
    activation: Activation, arch: str, keys: Keys
) -> tuple[Sequence[Entry], tuple[str, str]]:
    """Return the entries of the first table that has the op's key, with its name and that key.

    In each table the key as it is goes before other spellings of it.
    """
    for candidate in activation.candidates(arch):
        forms = _key_forms(candidate, keys)
        others = (other for key in forms for other in other_spellings(key))
        for key in itertools.chain(forms, others):
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
    """Keep a table's choices alone where an op has any, and tell what was decided.

    The host calls it with all choices of an op, whichever of its calls of the handler
    they came from, right before it would autotune (``AlgorithmSelectorCache.__call__``).
    """
    from_table = [c for c in choices if _annotation(c) is not None]
    activation = active_activation()
    if activation is None:
        return choices
    op = _STATE.op
    if op is not None and op.identity == host.current_op():
        _STATE.op = op.outer
        if op.keys[0] is not None:
            _tell(activation, op, [_annotation(choice) for choice in from_table])
    return from_table or choices


def _tell(activation: Activation, op: _Op, annotations: Sequence[Any]) -> None:
    try:
        activation.decided(_decision(op, annotations))
    except Exception as error:  # noqa: BLE001 - what is said of an op never ends the compile
        activation.swallow(error, "what was decided could not be told")


def _decision(op: _Op, annotations: Sequence[Any]) -> Decision:
    served = [found for found in annotations if isinstance(found, _Served)]
    table, table_key = (served[0].resource, served[0].key) if served else op.source
    if annotations and not served:
        table, table_key = USERS_TABLE, ""
    outcome: Outcome = "hit" if annotations else "dropped" if op.dropped else "miss"
    return Decision(
        key=(op.hit or op.keys)[0] or "",
        outcome=outcome,
        table=table or None,
        table_key=table_key or None,
        entries=tuple(found.entry for found in served),
        dropped=tuple(op.dropped),
        origin=host.current_origin(),
    )


def _annotation(choice: Any) -> Any:
    return getattr(choice, "annotations", {}).get(host.TABLE_ANNOTATION)


def _current_op() -> _Op:
    """Return the op that is being lowered; a choice of it may be a graph with ops."""
    op, identity = _STATE.op, host.current_op()
    if op is None or op.identity != identity:
        graph, _ = identity
        outer = op
        while outer is not None and outer.identity[0] != graph:
            outer = outer.outer
        # In one graph ops follow each other: one that nothing was decided for is over.
        outer = op if outer is None else outer.outer
        depth = 0 if outer is None else outer.depth + 1
        if depth > _DEEPEST:  # no host nests so: graphs that ended in an error are left over
            outer, depth = None, 0
        _STATE.op = op = _Op(identity, outer=outer, depth=depth)
    return op


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
