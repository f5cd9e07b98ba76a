"""The paper's experiment: matched arms over the same sites, pairs and seeds (DESIGN 1.7, 1.9)."""
