"""The gateway's seat for policies: who may pass, in which order, and what of an answer goes out."""
