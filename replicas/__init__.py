"""What runs beside an engine: eviction order, prefetch, the exchange with the runtime actor."""
