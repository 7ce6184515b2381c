"""Collects, merges, checks and compares the tables; imports the runtime, never the reverse."""
