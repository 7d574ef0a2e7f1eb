#!/bin/sh
# Sets this checkout up and runs every check: ruff, mypy, pytest. Arguments go to pytest, which runs the tests in as many processes as
# there are cores, four at most; arguments that select no test are an error. Those marked `ray` are scripts/ray.sh's.
# Of paths, only the extras that their tests name are installed.
# usage: sh scripts/test.sh [PYTEST_ARGUMENT...]
set -eu
cd "$(dirname "$0")/.."
_option=
_extras=
# Adds an extra to the list if a test of a file or folder, or what it shares with its neighbours, has one of these words.
_wants() {
    case ",$_extras," in *",$1,"*) return;; esac
    _shared=$(dirname "$3")/conftest.py
    [ -e "$_shared" ] && [ "$_shared" != tests/conftest.py ] || _shared=
    ! grep -rqE -e "$2" --include='*.py' "$3" ${_shared:+"$_shared"} || _extras=$_extras,$1
}
for _argument; do       # before anything is set up
    case "$_option" in -k|-m|-n|-p|-c|-o|-W|-r|--*) _value=1;; *) _value=;; esac
    case "$_option" in *=*) _value=;; esac
    _option=
    case "$_argument" in
        -*) _option=$_argument;;
        *) [ -n "$_value" ] || [ -e "${_argument%%::*}" ] || {
               echo "test.sh: there is no file or folder $_argument: give a path such as tests/unit, a test such as" \
                    "tests/unit/test_config.py::test_defaults, or options of pytest" >&2
               exit 2
           }
           [ -n "$_value" ] || {
               _extras=${_extras:-onnxruntime,cli,test}
               _wants compress 'ort_gpu_ep.compression|"compress"|sklearn|datasets|"examples"' "${_argument%%::*}"
               _wants scoring 'ort_gpu_ep.scoring|"score"|Predictor|pyarrow|PIL|"examples"' "${_argument%%::*}"
               _wants plot '-plot|matplotlib|"examples"' "${_argument%%::*}"
           };;
    esac
done
extras=${_extras:-all,test}
. scripts/setup.sh
unset PYTHONDONTWRITEBYTECODE       # some container images set it: each of the hundreds of processes would compile the package again
# Mesa keeps compiled kernels for the next process and the next run, where it can write.
_cache=${MESA_SHADER_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/dev/null}/.cache}}
{ mkdir -p "$_cache" && [ -w "$_cache" ]; } 2>/dev/null || export MESA_SHADER_CACHE_DIR="$PWD/build/mesa"
# Tests run each kernel on few numbers: llvmpipe takes longer to optimise its machine code than that saves. GALLIVM_PERF= optimises.
export GALLIVM_PERF="${GALLIVM_PERF-nopt}"

failed=
echo "== ruff"; { "$python" -m ruff check . && "$python" -m ruff format --check --quiet .; } || failed="$failed ruff"
"$python" -m mypy > build/mypy.log 2>&1 & _mypy=$!       # beside the tests, which wait for processes now and then
echo "== pytest"
"$python" -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@" || _status=$?
if [ "${_status:-0}" = 5 ]; then
    kill "$_mypy"
    echo "test.sh: no test is selected by: $*" >&2
    exit 5
fi
# Up to three failures are asked again, each alone: what passes then depended on what ran before or beside it. That is a fault too, and
# named at the end, but it does not keep back a change that has nothing to do with it.
_failures=.pytest_cache/v/cache/lastfailed
_unsteady=
if [ "${_status:-0}" = 1 ] && [ "$(grep -c true "$_failures")" -le 3 ]; then
    _unsteady=$(cat "$_failures")
    echo "== pytest, what failed, alone"
    _status=
    "$python" -m pytest --last-failed "$@" || _status=$?
fi
[ -z "${_status:-}" ] || failed="$failed pytest"
echo "== mypy"; wait "$_mypy" || failed="$failed mypy"
cat build/mypy.log
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
[ -z "$_unsteady" ] || echo "UNSTEADY, passed only alone; please mend: $_unsteady"
