"""Where it runs: the embedded model, local and H100 clusters, monitoring."""
