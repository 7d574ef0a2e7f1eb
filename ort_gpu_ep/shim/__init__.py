"""The native shim: found or compiled, and its functions for the device."""
