"""Carries dumps over to other torches: what serves there without being measured again."""
