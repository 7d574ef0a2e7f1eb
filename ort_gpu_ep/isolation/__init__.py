"""The option isolation=process: the GPU in a worker process, so that a driver that crashes, hangs or leaks ends only
the worker."""
