"""Finds and proves the fastest kernel of each GEMM problem on the GPU that is here."""
