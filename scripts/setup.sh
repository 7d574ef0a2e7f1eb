# Sets this checkout up: a virtual environment with the package in it (editable), and a Vulkan driver. Does nothing that
# is done already. To be sourced from the checkout's root with `extras` set to the extras and dependency groups to install:
#   extras=all,test; . scripts/setup.sh
# Afterwards `$python` is the environment's interpreter, and its commands are first on PATH.
# Environment: VIRTUAL_ENV an environment to use instead of .venv; PYTHON the interpreter to make .venv with.
# shellcheck shell=sh
set -eu

say() { echo "setup.sh: $*" >&2; }

_cleanup() {
    for _process in ${_driver:-} ${_pip:-} ${_child:-}; do kill "$_process" 2>/dev/null || true; done
    rm -f "build/vulkan.$$"
    [ -z "${_lock:-}" ] || rm -rf "$_lock"
    [ -z "${_runtime:-}" ] || rm -rf "$_runtime"
}
trap _cleanup EXIT
trap 'exit 130' HUP INT TERM

# Waits for a process that this shell started, and returns its status. Every 2 seconds says what it is at: the last line of its log, or
# a name for all of it.
_wait() {
    _waited=0
    while kill -0 "$1" 2>/dev/null; do
        sleep 1
        _waited=$((_waited + 1))
        if [ $((_waited % 2)) = 0 ] && kill -0 "$1" 2>/dev/null; then
            _at=$(tail -n 1 "$2" 2>/dev/null | cut -c 1-60)
            say "  ${_waited} s: ${_at:-$3}"
        fi
    done
    wait "$1"
}

# Two runs in one checkout take turns. The lock holds the owner's process id, so that a dead run's lock is taken over.
_take_lock() {
    until mkdir "$1" 2>/dev/null; do
        _owner=$(cat "$1/pid" 2>/dev/null || true)
        if [ -n "$_owner" ] && ! kill -0 "$_owner" 2>/dev/null; then
            rm -rf "$1"
        else
            [ -n "${_waiting:-}" ] || say "another run is setting up (lock: $1): waiting"
            _waiting=1
            sleep 1
        fi
    done
    echo $$ > "$1/pid"
    _lock=$1
}

_find_python() {
    for _name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$_name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$_name"
            return
        fi
    done
    say "found no Python 3.11 or newer; install one, or name it: PYTHON=/path/to/python3.12 sh $0"
    return 1
}

_bin() { if [ -d "$1/Scripts" ]; then echo "$1/Scripts"; else echo "$1/bin"; fi; }

_has_pip() { "$(_bin "$1")/python" -m pip --version >/dev/null 2>&1; }

_make_venv() {
    _base=$(_find_python)
    say "creating $1 with $("$_base" --version)"
    "$_base" -m venv --clear --without-pip "$1"
}

# Debian and Ubuntu ship Python without ensurepip. Then pip comes from the Python at hand, or out of Debian's own package.
_add_pip() {
    _python=$(_bin "$1")/python
    "$_python" -m ensurepip --default-pip >/dev/null 2>&1 && _has_pip "$1" && return
    _get="install --quiet --disable-pip-version-check pip"
    # shellcheck disable=SC2086
    "$(_find_python)" -m pip --python "$_python" $_get >/dev/null 2>&1 && _has_pip "$1" && return
    for _folder in /usr/share/python-wheels "$PWD/build/pip-whl/usr/share/python-wheels"; do
        [ "$_folder" = /usr/share/python-wheels ] || sh scripts/unpack_debs.sh build/pip-whl python3-pip-whl || true
        _wheel=$(ls "$_folder"/pip-*.whl 2>/dev/null | head -n 1)
        # shellcheck disable=SC2086
        [ -z "$_wheel" ] || { "$_python" "$_wheel/pip" $_get && _has_pip "$1" && return; }
    done
    say "this Python has no pip and can't get one. On Debian and Ubuntu: apt-get install python3-venv, then run this again"
    return 1
}

if [ -n "${VIRTUAL_ENV:-}" ] && [ ! -x "$(_bin "$VIRTUAL_ENV")/python" ]; then
    say "VIRTUAL_ENV=$VIRTUAL_ENV has no Python in it: using .venv"
    VIRTUAL_ENV=
fi
# pip compiles no bytecode, neither of what it installs nor of what it builds with: Python does that for what is run, which is a tenth.
export PIP_COMPILE=0
_venv=${VIRTUAL_ENV:-$PWD/.venv}
mkdir -p build
sh scripts/lavapipe.sh .vulkan > "build/vulkan.$$" &      # it downloads while pip installs
_driver=$!
_stamp=$_venv/.ort-gpu-ep.$(echo "${extras:-}" | tr ',' '.')
_wanted=$(echo "$PWD"; cksum pyproject.toml build_backend/*.py)
if [ "$(cat "$_stamp" 2>/dev/null)" != "$_wanted" ] || [ ! -x "$(_bin "$_venv")/python" ]; then
    _take_lock "$PWD/build/setup.lock"
    if [ "$(cat "$_stamp" 2>/dev/null)" != "$_wanted" ]; then
        "$(_bin "$_venv")/python" -c '' 2>/dev/null || _make_venv "$_venv"
        command -v uv >/dev/null 2>&1 || _has_pip "$_venv" || { _add_pip "$_venv" & _pip=$!; _wait "$_pip" "" "putting pip into it"; }
        say "installing the package${extras:+ with the extras $extras} into $_venv"
        "$(_bin "$_venv")/python" scripts/requirements.py "${extras:-}" > build/requirements.txt
        if command -v uv >/dev/null 2>&1; then
            uv pip install --no-progress --python "$(_bin "$_venv")/python" --requirement build/requirements.txt > build/pip.log 2>&1 &
        else
            "$(_bin "$_venv")/python" -m pip install --disable-pip-version-check --progress-bar off \
                --requirement build/requirements.txt > build/pip.log 2>&1 &
        fi
        _pip=$!
        if ! _wait "$_pip" build/pip.log installing; then
            cat build/pip.log >&2
            say "installing failed; see above"
            exit 1
        fi
        _pip=
        echo "$_wanted" > "$_stamp"
    fi
    rm -rf "$_lock"
    _lock=
fi
_commands=$(_bin "$_venv")
python=$_commands/python   # for the script that sources this one
export VIRTUAL_ENV="$_venv" PATH="$_commands:$PATH"

_wait "$_driver" "" "unpacking Mesa's software driver"
_driver=
eval "$(cat "build/vulkan.$$")"
rm -f "build/vulkan.$$"
if [ -z "${XDG_RUNTIME_DIR:-}" ]; then   # Mesa complains about every process without it
    _runtime=$(mktemp -d)
    export XDG_RUNTIME_DIR="$_runtime"
fi
