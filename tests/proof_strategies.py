"""Proofs as hypothesis draws them, for the tests of dumps and of tables."""

from __future__ import annotations

from hypothesis import strategies as st

from inductor_tables.schema import Proof

counts = st.integers(0, 2**53)
proofs = st.builds(
    Proof,
    spread_ns=counts,
    aten_ns=st.none() | counts,
    host_ns=st.none() | counts,
    previous_ns=st.none() | counts,
    rounds=counts,
)
