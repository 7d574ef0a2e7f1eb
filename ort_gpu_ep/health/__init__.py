"""Is this adapter to be trusted? Self-test and conformance."""
