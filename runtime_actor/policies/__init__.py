"""Policies over observe / score / predict / act, one file each."""
