"""What torch and vLLM call when they start: ``INDUCTOR_TABLES=1`` enables tables without code.

The entry points of ``torch.backends`` are called at the end of ``import torch``
(``torch/__init__.py``, ``_import_device_backends``), those of ``vllm.general_plugins`` in
every process of vLLM. Nothing may go wrong here: an error would end the import of torch.
"""

from __future__ import annotations

import os

VARIABLE = "INDUCTOR_TABLES"


def autoload() -> None:
    """Enable tables if the environment says so and the program has not done it itself."""
    text = os.environ.get(VARIABLE, "").strip()
    if text:
        _enable(text)


def _enable(text: str) -> None:
    import logging

    try:
        from inductor_tables import config
        from inductor_tables.activation import enable, is_enabled

        if config.flag(VARIABLE, text) and not is_enabled():
            enable()
    except Exception as error:  # noqa: BLE001 - the import of torch must not fail of it
        logging.getLogger("inductor_tables").warning(
            "%s=%s has no effect (%s: %s)", VARIABLE, text, type(error).__name__, error
        )
