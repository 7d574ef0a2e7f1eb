"""WebGPU by its C API: wgpu-native or Dawn, found, loaded and called. The only package that loads them."""
