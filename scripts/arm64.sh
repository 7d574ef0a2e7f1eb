#!/bin/sh
# 64-bit ARM Linux on this machine: DIR/python is its Python, which qemu-user runs, with the packages that this one depends on and Mesa's
# drivers for ARM, lavapipe among them. From Debian's packages (sid) and PyPI's wheels, in a folder; needs no root and installs nothing.
#   sh scripts/arm64.sh && python scripts/build_wheel.py dist && sh scripts/arm64.sh --wheel dist/*.whl && .arm64/python scripts/smoke.py
# usage: sh scripts/arm64.sh [--wheel FILE] [DIR]      DIR: .arm64 by default. --wheel: this package's, which is unpacked there, too
set -eu
here=$(cd "$(dirname "$0")" && pwd)
wheel=
[ "${1:-}" != --wheel ] || { wheel=$2; shift 2; }
dir=${1:-.arm64}
say() { echo "arm64.sh: $*" >&2; }
unpack() {
    code=0
    sh "$here/unpack_debs.sh" "$@" || code=$?
    [ "$code" != 2 ] || say "this needs Debian's apt-get and dpkg-deb, its keys and a mirror of it: run it in a container of Debian"
    [ "$code" = 0 ] || exit 1
}
unpack --suite sid --machine arm64 "$dir/debian" mesa-vulkan-drivers mesa-drm-shim libvulkan1 python3 ca-certificates
unpack --alone --suite trixie "$dir/qemu" qemu-user
# A child of that Python is one again: its sys.executable is this script. ARM64_DRIVER: of its Vulkan drivers the one that it uses, by the
# name of its manifest. ARM64_SHIM: a library that it loads first, by its name.
cat > "$dir/python" <<'EOF'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
root=$here/debian
library=$root/usr/lib/aarch64-linux-gnu
case ":${PYTHONPATH:-}:" in
*":$here/site:"*) ;;
*) PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$here/site ;;
esac
driver=$root/usr/share/vulkan/icd.d/${ARM64_DRIVER:-lvp}_icd.json
export PYTHONPATH PYTHONHOME="$root/usr" VK_DRIVER_FILES="$driver" VK_ICD_FILENAMES="$driver" LD_LIBRARY_PATH=
exec "$here/qemu/usr/bin/qemu-aarch64" "$root/usr/lib/ld-linux-aarch64.so.1" --library-path "$library" ${ARM64_SHIM:+--preload "$library/$ARM64_SHIM"} \
    --argv0 "$here/python" "$root/usr/bin/python3" "$@"
EOF
chmod +x "$dir/python"
python=${PYTHON:-python3}
install() {
    set -- --only-binary=:all: --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_26_aarch64 \
        --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --python-version "$version" "$@"
    "$python" -m pip install --quiet --disable-pip-version-check "$@"
}
if [ ! -d "$dir/site" ] || [ -n "$wheel" ]; then
    version=$("$dir/python" -c "import sys; print('.'.join(map(str, sys.version_info[:2])))")
fi
if [ ! -d "$dir/site" ]; then
    scratch=$(mktemp -d "$dir/site.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    # What pyproject.toml says, with the extras that scripts use.
    needed=$("$python" -c "
import sys, tomllib
project = tomllib.load(open(sys.argv[1], 'rb'))['project']
print('\n'.join([*project['dependencies'], *(each for name in ('onnxruntime', 'cli') for each in project['optional-dependencies'][name])]))
" "$here/../pyproject.toml")
    echo "$needed" > "$scratch/needed.txt"
    install --target "$scratch/site" --requirement "$scratch/needed.txt"
    mv -T "$scratch/site" "$dir/site"
fi
# The checkout's own shim for that machine, which its package loads there.
"$python" -c "
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ort_gpu_ep.shim import build
library = Path(build.__file__).with_name(build.file_name('linux-arm64'))
library.exists() or build.build(library, 'linux-arm64')" "$here/.."
[ -z "$wheel" ] || install --target "$dir/site" --upgrade --no-deps "$wheel"
