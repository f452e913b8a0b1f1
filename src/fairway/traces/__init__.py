"""Readers and writers of public trace formats, and seeded generators of workloads."""
