"""Every error this package raises on purpose.

Each message says what is wrong, where (resource, path inside it), what was
expected, what was found, and what to do.
"""

from __future__ import annotations


class InductorTablesError(Exception):
    """Base of all errors of this package."""


class InvalidTableError(InductorTablesError, ValueError):
    """A table is damaged or breaks the format.

    Attributes:
        resource: the file or resource the table came from.
        where: the place inside it, e.g. ``header.sources[0].torch``.
    """

    def __init__(self, resource: str, where: str, problem: str) -> None:
        super().__init__(f"{resource}: {where}: {problem}")
        self.resource = resource
        self.where = where
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidTableError], tuple[str, str, str]]:
        return type(self), (self.resource, self.where, self.problem)


class InvalidDumpError(InvalidTableError):
    """A dump is damaged or holds a row that may not go into a table."""


class InvalidProblemsError(InvalidTableError):
    """A file of problems is damaged or holds what is no problem."""


class InvalidKeyError(InductorTablesError, ValueError):
    """A text does not follow the grammar of lookup keys."""


class NoTableError(InductorTablesError, LookupError):
    """``enable(strict=True)`` found no table for this torch and device."""


class UnsupportedTorchError(InductorTablesError, RuntimeError):
    """The installed torch has no lookup table hooks (older than 2.10)."""


class ForeignHandlerError(InductorTablesError, RuntimeError):
    """Another choices handler is installed that look-ups cannot be put in front of."""


class DisagreementError(InductorTablesError, RuntimeError):
    """The ranks of a job would choose differently, or could not be compared."""


class SimulationError(InductorTablesError, RuntimeError):
    """The simulated device cannot be set up or was used in a way it cannot serve."""


class BuildError(InductorTablesError, ValueError):
    """The build tools refuse their input; nothing was written."""


class SkippedProblemError(InductorTablesError, ValueError):
    """A problem that the tuner cannot tune here; the message says why."""


class DeadDeviceError(InductorTablesError, RuntimeError):
    """A kernel broke the GPU's context: the process must be started anew."""


class TargetError(InductorTablesError, ValueError):
    """A model cannot be loaded, or cannot be lowered."""
