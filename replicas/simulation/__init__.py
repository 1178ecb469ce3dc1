"""An engine with a cost model and no model, for tests of scale and faults."""
