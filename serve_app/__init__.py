"""What a client meets: the OpenAI-compatible gateway, identity, routing, the live view."""
