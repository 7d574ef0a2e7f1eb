"""How operators become kernels: the registry, the claim, lowering, and the cost model that chooses between forms of a
kernel."""
