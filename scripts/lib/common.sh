# What every script here shares: where things are, how they speak, how they fail.
# shellcheck shell=bash disable=SC2034
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
HOME_DIR=$ROOT/.foretoken
TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
cd "$ROOT"

say() { printf '%s\n' "$*"; }

# fail WHAT FIX...: one line of what went wrong, one of what to do.
fail() {
    printf '%s: error: %s\n' "${0##*/}" "$1" >&2
    shift
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    exit 1
}

usage_error() {
    printf '%s: %s\nTry: %s --help\n' "${0##*/}" "$1" "$0" >&2
    exit 2
}

# help_from_head: prints the comment block at the head of the script that was called.
help_from_head() {
    awk 'NR == 1 { next } /^#/ { sub(/^# ?/, ""); print; next } { exit }' "$0"
}

need() { # need COMMAND WHY-AND-HOW
    command -v "$1" >/dev/null 2>&1 || fail "$1 is not installed" "$2"
}
