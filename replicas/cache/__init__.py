"""Whose a block is, what it is worth, and in which order blocks are taken."""
