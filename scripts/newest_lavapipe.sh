#!/bin/sh
# Runs Python with lavapipe of the newest Mesa, Debian sid's, which scripts/compilers.sh unpacks: by sid's own loader and C library. Its
# subgroups have LP_NATIVE_VECTOR_WIDTH / 32 invocations (128, 256 and 512 bits: 4, 8 and 16; a CPU without AVX-512 does 512, too).
# usage: LP_NATIVE_VECTOR_WIDTH=512 sh scripts/newest_lavapipe.sh scripts/adapters.py run --sample
#        sh scripts/newest_lavapipe.sh -m ort_gpu_ep.cli doctor --quick       [DIR=.compilers]
set -eu
dir=$(cd "${DIR:-.compilers}/sid" && pwd) || { echo "newest_lavapipe.sh: sh scripts/compilers.sh unpacks Mesa first" >&2; exit 1; }
library=$dir/usr/lib/x86_64-linux-gnu
python=$(command -v "${PYTHON:-python}")
driver=$dir/usr/share/vulkan/icd.d/lvp_icd.json
export VK_DRIVER_FILES="$driver" VK_ICD_FILENAMES="$driver" LD_LIBRARY_PATH= DIR="${dir%/sid}" PYTHON="$python"
exec "$dir/usr/lib64/ld-linux-x86-64.so.2" --library-path "$library" --argv0 "$python" "$(readlink -f "$python")" "$@"
