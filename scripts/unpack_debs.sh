#!/bin/sh
# Unpacks Debian packages, with those of their dependencies that this machine lacks, into a folder. Needs no root and
# installs nothing. The folder appears whole or not at all, and any number of runs may do this at once.
# usage: sh scripts/unpack_debs.sh [--alone] [--suite SUITE [--machine ARCHITECTURE]] [--source] DIR PACKAGE...
#   --alone: without dependencies. --suite: of this suite of Debian (trixie, sid, ...) from the mirror that this machine's own sources name,
#   with all dependencies, the C library too, as if nothing were installed. --machine: Debian's name of another one (arm64).
#   --source: what a source package is packed in, as it was fetched.
# exit code: 0 unpacked, or DIR was there already; 2 this machine has no apt-get and dpkg-deb; 1 anything else
set -eu
alone=
suite=
machine=
source=
while :; do
    case "${1:-}" in
    --alone) alone=1 ;;
    --source) source=1 ;;
    --suite) suite=${2:-}; shift ;;
    --machine) machine=${2:-}; shift ;;
    *) break ;;
    esac
    shift
done
[ $# -ge 2 ] || { echo "usage: sh scripts/unpack_debs.sh [--alone] [--suite SUITE [--machine ARCHITECTURE]] [--source] DIR PACKAGE..." >&2; exit 1; }
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

# The machine's sources and keys, but package lists and caches of our own. A suite: one source of our own, signed by Debian's keys.
set_sources() {
    [ -n "$suite" ] || return 0
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$keys" ] || { say "no $keys, which checks Debian's signatures: install debian-archive-keyring, or run this in a Debian container"; exit 2; }
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] *\)*//p' | awk '{print $1}' | grep -E '/debian/?$' | head -n 1)
    [ -n "$mirror" ] || { say "apt's sources on this machine name no mirror of Debian, so there is nowhere to take $suite from"; exit 2; }
    for kind in deb deb-src; do echo "$kind [signed-by=$keys] $mirror $suite main"; done > "$scratch/sources.list"
    : > "$scratch/status"
}
apt() {
    [ -z "$machine" ] || set -- -o "APT::Architecture=$machine" -o "APT::Architectures=$machine" "$@"
    [ -z "$suite" ] || set -- -o "Dir::Etc::SourceList=$scratch/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Status=$scratch/status" "$@"
    apt-get -o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache=$scratch/cache" -o Debug::NoLocking=1 \
        -o APT::Sandbox::User=root -o Acquire::Retries=3 -qq "$@" </dev/null
}

set_sources
apt update >&2 || { say "apt-get update failed; see above"; exit 1; }
# What an installation would add, one package a line. The C library only with a suite, whose programs run by its own loader: a second one
# can't be loaded beside the first.
packages=
not='libc6|libc-bin'
[ -z "$suite" ] || not=
[ -n "$alone$source" ] || packages=$(apt --simulate --no-install-recommends install "$@" | sed -n 's/^Inst \([^ ]*\) .*/\1/p' | grep -Evx "$not" || true)
[ -n "$packages" ] || packages=$*
if [ -n "$source" ]; then
    # shellcheck disable=SC2086  # a list of names
    (cd "$scratch/root" && apt --download-only source $packages >&2) || { say "could not download the source of: $packages"; exit 1; }
else
    # shellcheck disable=SC2086  # a list of names
    (cd "$scratch/debs" && apt download $packages >&2) || { say "could not download: $packages"; exit 1; }
    for deb in "$scratch"/debs/*.deb; do dpkg-deb -x "$deb" "$scratch/root"; done
fi
chmod 755 "$scratch/root"
mv -T "$scratch/root" "$dir" 2>/dev/null || [ -d "$dir" ] || { say "could not create $dir"; exit 1; }
