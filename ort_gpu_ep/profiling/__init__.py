"""Where the time of a run goes: each dispatch by the GPU's clock, beside what the adapter could do, and what the host does around them."""
