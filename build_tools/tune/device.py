"""The GPU that is this process's own, and what the results say of it."""

from __future__ import annotations

import os
from typing import Any

import torch

from build_tools.tune.model import Chip
from inductor_tables.errors import BuildError
from inductor_tables.provenance import provenance


def own_device() -> torch.device:
    """Return this rank's GPU, the first one outside of a job.

    Raises:
        BuildError: there is none.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if count == 0:
        raise BuildError(f"this needs a GPU, and torch {torch.__version__} sees none")
    if number >= count:
        raise BuildError(
            f"this needs a GPU a rank: rank {number} of this host was to use cuda:{number}, torch "
            f"{torch.__version__} sees {count}; start one process a GPU"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def described(device: torch.device) -> dict[str, Any]:
    """Return the provenance of what this process measures."""
    torch.zeros(1, device=device)
    return provenance(torch.cuda.get_device_properties(device).gcnArchName)


def chip_of(device: torch.device) -> Chip:
    """Return what the search's model knows of a device."""
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", 0)
    return Chip(
        sms=properties.multi_processor_count,
        shared_bytes=shared or properties.shared_memory_per_block,
        warp_groups=torch.version.hip is None and properties.major >= 9,
    )
