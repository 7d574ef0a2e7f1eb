"""The GPU in a worker process: a driver that crashes, hangs or leaks takes nobody along (the option isolation=process)."""
