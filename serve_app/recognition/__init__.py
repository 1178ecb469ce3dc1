"""Agents and sessions found in what requests say."""
