"""The third tier: agent identities, transition counts and forecasts for the whole cluster.

Everything here is pure Python and numpy, except `actor.py` (the Ray shell) and `client.py` (its handle).
"""
