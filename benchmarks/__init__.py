"""Measurements: trace replay, real engines, hot paths."""
