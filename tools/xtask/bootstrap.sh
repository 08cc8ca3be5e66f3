#!/bin/sh
# What must be there before Rust can build xtask, which installs the rest: cargo itself and
# a linker. Says what it is about to install; does nothing on a machine that has both.
set -eu

say() { echo "granule: $*" >&2; }

# rustup's usual place, for shells that were started before it was installed.
if ! command -v cargo >/dev/null 2>&1; then
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        say "cargo is in $HOME/.cargo/bin, which is not in PATH; add it and try again"
    else
        say "cargo not found; install rustup from https://rustup.rs and try again"
    fi
    exit 1
fi

if command -v cc >/dev/null 2>&1; then
    exit 0
fi

if command -v apt-get >/dev/null 2>&1; then
    refresh="apt-get update" install="apt-get install -y --no-install-recommends gcc libc6-dev"
elif command -v dnf >/dev/null 2>&1; then
    refresh="" install="dnf install -y gcc"
elif command -v pacman >/dev/null 2>&1; then
    refresh="" install="pacman -Sy --noconfirm --needed gcc"
elif command -v zypper >/dev/null 2>&1; then
    refresh="" install="zypper --non-interactive install gcc"
else
    say "no C compiler (cc) found, which Rust links with; install gcc or clang and try again"
    exit 1
fi

sudo=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        say "no C compiler (cc) found, which Rust links with; as root run: $install"
        exit 1
    fi
    sudo="sudo"
fi
export DEBIAN_FRONTEND=noninteractive
for command in "$refresh" "$install"; do
    [ -n "$command" ] || continue
    say "no C compiler (cc) found, which Rust links with; about to run: $sudo $command"
    # The words of these fixed commands are meant to be split.
    # shellcheck disable=SC2086
    $sudo $command
done
