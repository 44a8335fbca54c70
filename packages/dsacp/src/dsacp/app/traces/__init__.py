"""Serving traces: read from files, or made from a seed."""
