"""Checks and messages of serve_config.yaml."""
