#!/bin/sh
# Sets this checkout up and runs every check: ruff, mypy, pytest. Arguments go to pytest, which runs twice: the tests marked `alone`
# one by one, then the others in as many processes as there are cores, four at most; those marked `ray` are scripts/ray.sh's.
# usage: sh scripts/test.sh [PYTEST_ARGUMENT...]
set -eu
cd "$(dirname "$0")/.."
extras="test"
. scripts/setup.sh

selected() { "$python" -m pytest "$@" || [ $? -eq 5 ]; }   # 5: the arguments select none of them

failed=
echo "== ruff"; "$python" -m ruff check . || failed="$failed ruff"
echo "== mypy"; "$python" -m mypy || failed="$failed mypy"
echo "== pytest, one by one"; selected -m alone "$@" || failed="$failed pytest-alone"
echo "== pytest, in parallel"
selected -m "not alone and not ray" -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@" || failed="$failed pytest"
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
