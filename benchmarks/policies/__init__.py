"""Eviction policies that a replay can compare, one file each; `known.py` lists them."""
