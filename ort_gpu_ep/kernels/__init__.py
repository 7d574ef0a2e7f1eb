"""How operators become kernels: the registry, the claim, lowering, and what the choice between forms of a kernel goes by."""
