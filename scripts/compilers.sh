#!/bin/sh
# The compilers of GPUs that are not here: Mesa's drivers for AMD, Intel, Qualcomm, Apple and NVIDIA, and the libraries by which Mesa fakes
# a GPU's kernel driver (drm-shim), so that the ordinary driver opens a device and compiles for it. Nothing runs there: work that is
# submitted does nothing. benchmarks/compilers.py compiles the package's kernels with them.
# From Debian's packages of stable (trixie) and of sid, each with its own C library in a folder, beside whatever this machine has; needs no
# root and installs nothing. Intel's shim is in no package: cc builds it from Mesa's source package. May be interrupted, and run again.
# usage: sh scripts/compilers.sh [DIR [SUITE...]]      DIR: .compilers by default; SUITE: trixie sid by default, trixie has no Turnip and no M1
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-.compilers}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- trixie sid
say() { echo "compilers.sh: $*" >&2; }
[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || { say "the shims are packages of Linux on x86-64, and this is $(uname -s) on $(uname -m)"; exit 1; }

unpack() {
    code=0
    sh "$here/unpack_debs.sh" "$@" || code=$?
    [ "$code" != 2 ] || say "this needs Debian's apt-get and dpkg-deb, its keys and a mirror of it: run it in a container of Debian"
    [ "$code" = 0 ] || exit 1
}

for suite in "$@"; do
    unpack --suite "$suite" "$dir/$suite" mesa-vulkan-drivers mesa-drm-shim libvulkan1
    ls "$dir/$suite"/usr/lib/*/libvulkan_*.so >/dev/null || { say "no driver in $dir/$suite: delete it and run this again"; exit 1; }
done

if [ ! -e "$dir/libintel_noop_drm_shim.so" ]; then
    for tool in "${CC:-cc}" "${PYTHON:-python3}" xz; do
        command -v "$tool" >/dev/null || { say "Intel's shim is built from source, and there is no $tool"; exit 1; }
    done
    unpack --source --suite trixie "$dir/source" mesa
    unpack --alone --suite trixie "$dir/tools" libdrm-dev python3-mako python3-markupsafe
    scratch=$(mktemp -d "$dir/shim.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' HUP INT TERM
    sh "$here/intel_shim.sh" "$dir/source" "$dir/tools" "$scratch"
    mv "$scratch/libintel_noop_drm_shim.so" "$dir/"
fi
say "$dir is set up: python -m benchmarks.compilers"
