"""The pad_mm pass, which pads a matrix product where a benchmark says that it pays."""

from __future__ import annotations

from typing import Any

from torch._inductor.fx_passes import pad_mm

from inductor_tables.simulation.patching import Patches
from inductor_tables.simulation.records import Note, Recorder


class _StopwatchNeededError(Exception):
    """The pass has decided all it can without timing."""


def patch_pad_mm(patches: Patches, recorder: Recorder, *, answer: bool) -> None:
    """Let the pass decide by its own rules, and answer where it would reach for a stopwatch.

    It makes the key of its benchmark cache exactly when every rule has left the question open.
    """

    def key(*_args: Any, **_kwargs: Any) -> Any:
        raise _StopwatchNeededError

    def should_pad(original: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except _StopwatchNeededError:
            _match, left, right, op = args[:4]
            recorder.notes.append(
                Note(
                    kind="pad_mm",
                    what=f"{op} of {list(left.shape)} and {list(right.shape)}",
                    decision="padded" if answer else "not padded",
                )
            )
            return answer

    patches.replace(pad_mm, "should_pad_bench_key", key)
    # The function is called _should_pad_bench in 2.10.
    patches.wrap(pad_mm, "_should_pad", should_pad, if_present=True)
    patches.wrap(pad_mm, "_should_pad_bench", should_pad, if_present=True)
