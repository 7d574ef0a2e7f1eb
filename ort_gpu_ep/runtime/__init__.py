"""A plan that runs: its buffers, bind groups and command buffers, and the programs that make plans for the sizes of
runs."""
