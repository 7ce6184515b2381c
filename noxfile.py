"""The suite on every supported torch: ``nox`` runs all, ``nox -s "tests(torch='2.13.0')"`` one.

No GPU is needed: a CUDA build of torch imports and lowers on the simulated device.
"""

from __future__ import annotations

import nox

TORCH = ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
TRITON_OF_CPU_BUILDS = {"2.13.0": "3.7.1"}
"""CUDA builds of torch bring their triton; a CPU build takes the one its CUDA build pins."""

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["tests"]


@nox.session
@nox.parametrize("torch", TORCH)
def tests(session: nox.Session, torch: str) -> None:
    """Run the tests that CI runs, against one torch."""
    triton = TRITON_OF_CPU_BUILDS.get(torch)
    session.install(f"torch=={torch}", *([f"triton=={triton}"] if triton else []))
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-n", "auto", "--dist", "loadfile", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """Run the tests that take minutes, against torch 2.13."""
    session.install("torch==2.13.0", "triton==3.7.1", "-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "slow", "--timeout", "3600", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install("torch==2.13.0", "-e", ".[test,lint]")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
