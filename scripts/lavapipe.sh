#!/bin/sh
# Makes sure that a Vulkan driver can be loaded: prints shell `export` lines to evaluate (nothing where the system
# has a driver of its own). Needs no root: on Debian and Ubuntu it unpacks Mesa's software driver (lavapipe) and the
# Vulkan loader from the distribution's own packages into the folder given as $1 (default: .vulkan).
# usage: eval "$(sh scripts/lavapipe.sh [DIR])"
set -eu
dir=${1:-.vulkan}
say() { echo "lavapipe.sh: $*" >&2; }

has_system_driver() {
    for folder in /usr/share/vulkan/icd.d /etc/vulkan/icd.d /usr/local/share/vulkan/icd.d; do
        ls "$folder"/*.json >/dev/null 2>&1 && { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -q 'libvulkan\.so\.1' && return 0
    done
    return 1
}

[ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] && exit 0
[ "$(uname)" = Linux ] || exit 0          # macOS (Metal) and Windows (DX12) need no Vulkan
has_system_driver && exit 0

if [ ! -f "$dir/env.sh" ]; then
    command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || {
        say "no Vulkan driver, and no apt-get to fetch one with. Install your distribution's Mesa Vulkan drivers"
        say "(Fedora: mesa-vulkan-drivers vulkan-loader; Arch: vulkan-swrast vulkan-icd-loader) and run this again."
        exit 1
    }
    say "no Vulkan driver found: unpacking Mesa's lavapipe into $dir (about 150 MB, no root needed)"
    mkdir -p "$dir/lists/partial" "$dir/debs/partial" "$dir/root"
    root=$(cd "$dir" && pwd)
    apt="-o Dir::State::Lists=$root/lists -o Dir::Cache=$root/debs -o Dir::Cache::archives=$root/debs -o Debug::NoLocking=1 -o APT::Sandbox::User=root"
    # shellcheck disable=SC2086
    apt-get $apt update >&2
    # What an installation would add to this machine: the packages, one a line.
    # shellcheck disable=SC2086
    packages=$(apt-get $apt --simulate --no-install-recommends install mesa-vulkan-drivers libvulkan1 | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
    [ -n "$packages" ] || { say "apt-get names no package to install"; exit 1; }
    # shellcheck disable=SC2086
    (cd "$dir/debs" && apt-get $apt download $packages >&2)
    for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir/root"; done
    lib=$(dirname "$(find "$root/root" -name 'libvulkan_lvp.so' | head -n 1)")
    icd="$root/lvp_icd.json"
    printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s/libvulkan_lvp.so", "api_version": "1.3.0"}}\n' "$lib" > "$icd"
    rm -rf "$dir/debs" "$dir/lists"
    {
        echo "export VK_DRIVER_FILES='$icd'"
        echo "export VK_ICD_FILENAMES='$icd'"        # the same, for loaders older than 1.3.207
        echo "export LD_LIBRARY_PATH='$lib'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
    } > "$dir/env.sh"
fi
cat "$dir/env.sh"
