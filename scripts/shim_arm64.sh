#!/bin/sh
# Loads the shim of 64-bit ARM Linux on this machine, by Debian's qemu-user-static and its C library for that architecture, and calls all of
# its functions (shim_loader.c). Needs Debian's apt-get, and the package ziglang as the compiler; no root.
# usage: sh scripts/shim_arm64.sh [DIR]       DIR: .arm64 by default
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-.arm64}
python=${PYTHON:-python}
sh "$here/unpack_debs.sh" --alone "$dir/root" qemu-user-static libc6-arm64-cross
"$python" -m ziglang cc -target aarch64-linux-gnu.2.27 -Wall -Wextra -o "$dir/loader" "$here/shim_loader.c"
shim=$(cd "$here/.." && "$python" -c "
import sys
from pathlib import Path
from ort_gpu_ep.shim import build
folder = Path(sys.argv[1])
print(build.build(folder / build.file_name('linux-arm64'), 'linux-arm64'))" "$(cd "$dir" && pwd)")
"$dir/root/usr/bin/qemu-aarch64-static" -L "$dir/root/usr/aarch64-linux-gnu" "$dir/loader" "$shim"
rm -f "$shim"
