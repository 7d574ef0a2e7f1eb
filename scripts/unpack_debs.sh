#!/bin/sh
# Unpacks Debian packages, with those of their dependencies that this machine lacks, into a folder. Needs no root and
# installs nothing. The folder appears whole or not at all, and any number of runs may do this at once.
# usage: sh scripts/unpack_debs.sh [--alone] DIR PACKAGE...        --alone: without dependencies
# exit code: 0 unpacked, or DIR was there already; 2 this machine has no apt-get and dpkg-deb; 1 anything else
set -eu
alone=
[ "${1:-}" = --alone ] && { alone=1; shift; }
[ $# -ge 2 ] || { echo "usage: sh scripts/unpack_debs.sh [--alone] DIR PACKAGE..." >&2; exit 1; }
dir=$1
shift
say() { echo "unpack_debs.sh: $*" >&2; }

[ -d "$dir" ] && exit 0
command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || exit 2

mkdir -p "$(dirname "$dir")"
dir=$(cd "$(dirname "$dir")" && pwd)/$(basename "$dir")
scratch=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' HUP INT TERM
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial" "$scratch/debs" "$scratch/root"

# The machine's sources and keys, but package lists and caches of our own.
apt() {
    apt-get -o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache=$scratch/cache" -o Debug::NoLocking=1 \
        -o APT::Sandbox::User=root -o Acquire::Retries=3 -qq "$@" </dev/null
}

apt update >&2 || { say "apt-get update failed; see above"; exit 1; }
# What an installation would add, one package a line. Never the C library: a second one can't be loaded beside the first.
packages=
[ -n "$alone" ] || packages=$(apt --simulate --no-install-recommends install "$@" | sed -n 's/^Inst \([^ ]*\) .*/\1/p' | grep -Evx 'libc6|libc-bin' || true)
[ -n "$packages" ] || packages=$*
# shellcheck disable=SC2086  # a list of names
(cd "$scratch/debs" && apt download $packages >&2) || { say "could not download: $packages"; exit 1; }
for deb in "$scratch"/debs/*.deb; do dpkg-deb -x "$deb" "$scratch/root"; done
chmod 755 "$scratch/root"
mv -T "$scratch/root" "$dir" 2>/dev/null || [ -d "$dir" ] || { say "could not create $dir"; exit 1; }
