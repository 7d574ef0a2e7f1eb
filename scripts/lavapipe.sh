#!/bin/sh
# Makes sure that a Vulkan driver can be loaded: prints shell `export` lines to evaluate (nothing where the system has
# a driver of its own). On Debian and Ubuntu it unpacks Mesa's software driver (lavapipe) and the Vulkan loader from the
# distribution's packages into DIR (default: .vulkan); that needs no root. DIR/env.sh holds the same lines.
# usage: exports=$(sh scripts/lavapipe.sh [DIR]) && eval "$exports"
set -eu
dir=${1:-.vulkan}
say() { echo "lavapipe.sh: $*" >&2; }

has_loader() {
    { ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null; } | grep -q 'libvulkan\.so\.1' && return 0
    for file in /usr/lib/libvulkan.so.1 /usr/lib64/libvulkan.so.1 /usr/lib/*/libvulkan.so.1 /usr/local/lib/libvulkan.so.1; do
        [ -e "$file" ] && return 0
    done
    return 1
}

# A driver counts if it is lavapipe, or if there is a GPU that it could drive.
has_driver() {
    for folder in /usr/share/vulkan/icd.d /etc/vulkan/icd.d /usr/local/share/vulkan/icd.d; do
        ls "$folder"/lvp*.json >/dev/null 2>&1 && return 0
        ls "$folder"/*.json >/dev/null 2>&1 && ls -d /dev/dri/renderD* /dev/nvidia[0-9]* /dev/dxg 2>/dev/null | grep -q . && return 0
    done
    return 1
}

[ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] && exit 0
[ "$(uname)" = Linux ] || exit 0          # macOS has Metal, Windows DX12
has_loader && has_driver && exit 0

if [ ! -d "$dir/root" ]; then
    say "no Vulkan driver: unpacking Mesa's lavapipe into $dir (about 150 MB, no root needed)"
    code=0
    sh "$(dirname "$0")/unpack_debs.sh" "$dir/root" mesa-vulkan-drivers libvulkan1 || code=$?
    if [ "$code" = 2 ]; then
        say "this needs Debian's apt-get and dpkg-deb, and they are not here. Install Mesa's software driver and the Vulkan"
        say "loader (Fedora: mesa-vulkan-drivers vulkan-loader; Arch: vulkan-swrast vulkan-icd-loader;"
        say "Alpine: mesa-vulkan-swrast vulkan-loader) and run this again, or use the CPU (placement=cpu)."
    fi
    [ "$code" = 0 ] || exit 1
fi

dir=$(cd "$dir" && pwd)
driver=$(find "$dir/root" -name 'libvulkan_lvp.so' | head -n 1)
[ -n "$driver" ] || { say "no libvulkan_lvp.so in $dir/root: delete $dir and run this again"; exit 1; }
lib=$(dirname "$driver")
path=$lib:$dir/root/lib/$(basename "$lib")   # not every release has merged /lib into /usr/lib

# Written each time: the checkout may have moved. By rename: another run may be reading them.
# A file that is as it was stays: to caches of what was found of drivers, another time of change is another driver.
write() { cat > "$dir/$1.$$" && { cmp -s "$dir/$1.$$" "$dir/$1" && rm -f "$dir/$1.$$" || mv -f "$dir/$1.$$" "$dir/$1"; }; }
write lvp_icd.json <<EOF
{"file_format_version": "1.0.0", "ICD": {"library_path": "$driver", "api_version": "1.3.0"}}
EOF
# VK_ICD_FILENAMES is what loaders before 1.3.207 read.
write env.sh <<EOF
export VK_DRIVER_FILES='$dir/lvp_icd.json'
export VK_ICD_FILENAMES='$dir/lvp_icd.json'
export LD_LIBRARY_PATH='$path'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
EOF
cat "$dir/env.sh"
