#!/bin/sh
# Builds the documents as a site and tests it: links, the reference, what its search finds (tests/site; needs node). The site is in build/site.
# usage: sh scripts/site.sh [REPOSITORY_URL]
set -eu
cd "$(dirname "$0")/.."
extras="all,test,docs"
. scripts/setup.sh
"$python" -m pytest --site tests/site
exec "$python" scripts/build_site.py build/site ${1:+--repository "$1"}
