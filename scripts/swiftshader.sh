#!/bin/sh
# A second Vulkan driver: SwiftShader, Chrome's, from Debian's package chromium-common, whose signature apt checks. Needs no root; prints
# shell `export` lines that make it the only driver. It has neither f16 nor int64, and compiles by Subzero, not by LLVM.
# usage: exports=$(sh scripts/swiftshader.sh [DIR]) && eval "$exports"       DIR: .swiftshader by default
set -eu
dir=${1:-.swiftshader}
code=0
sh "$(dirname "$0")/unpack_debs.sh" --alone "$dir/root" chromium-common || code=$?
if [ "$code" != 0 ]; then
    [ "$code" = 2 ] && echo "swiftshader.sh: this needs Debian's apt-get and dpkg-deb" >&2
    echo "swiftshader.sh: Debian's package chromium-common has the driver; Ubuntu has no such package" >&2
    exit 1
fi
dir=$(cd "$dir" && pwd)
driver=$dir/root/usr/lib/chromium
for file in libvk_swiftshader.so vk_swiftshader_icd.json libvulkan.so.1; do
    [ -e "$driver/$file" ] || { echo "swiftshader.sh: no $file in $driver: delete $dir and run this again" >&2; exit 1; }
done
mkdir -p "$dir/loader"                       # not the driver's folder: Chromium's libEGL lies there, too
ln -sf "$driver/libvulkan.so.1" "$dir/loader/"
cat <<EOF
export VK_DRIVER_FILES='$driver/vk_swiftshader_icd.json'
export VK_ICD_FILENAMES='$driver/vk_swiftshader_icd.json'
export LD_LIBRARY_PATH='$dir/loader'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
EOF
