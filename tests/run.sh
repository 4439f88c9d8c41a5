#!/usr/bin/env bash
# Runs every check: clippy, all tests against real servers, doctests. Installs what is missing (Debian, Ubuntu).
#
#   tests/run.sh              everything
#   tests/run.sh NAME…        only the tests whose names (file::test) contain one of these, and no clippy
#
# Each run has a temporary folder of its own, TMPDIR for all it starts. At the end, however it ends, no process that was
# started with it is left.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/servers.sh
source "$here/tests/servers.sh"

heading() { printf '\n=== %s\n' "$*"; }

# --- leaving nothing behind ------------------------------------------------------------------------------------------

# Processes of this run: they have its TMPDIR in their environment, or work inside it (a server's working folder is its data).
our_processes() {
  local -x TMPDIR=/ # the tools below are none of them
  {
    grep -lzxF "TMPDIR=$run_folder" /proc/[0-9]*/environ || true
    find /proc -maxdepth 2 -name cwd \( -lname "$run_folder" -o -lname "$run_folder/*" \) || true
  } 2>/dev/null | cut -d/ -f3 | sort -un
}

report_left() {
  local pid
  for pid in $(our_processes); do
    printf 'left behind: process %s: %s\n' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null || true)" >&2
  done
}

# end_processes SIGNAL : of this run. QUIT tells a PostgreSQL server to end at once, with all its backends.
end_processes() {
  local pid
  for pid in $(our_processes); do
    kill -"$1" "$pid" 2>/dev/null || true
  done
}

# Waits a moment for those that are just ending.
none_left() {
  for _ in {1..50}; do
    [[ -n $(our_processes) ]] || return 0
    sleep 0.1
  done
  return 1
}

clean_up() {
  local status=$?
  trap - EXIT
  trap '' INT TERM HUP
  cd /
  if [[ -n ${child:-} ]]; then kill -TERM -- "-$child" 2>/dev/null || true; fi
  if [[ -n ${run_folder:-} ]]; then
    if [[ -z ${interrupted:-} ]] && ! none_left; then
      report_left
      if ((status == 0)); then status=1; fi
    fi
    end_processes QUIT
    none_left || end_processes KILL
    none_left || {
      printf 'these processes do not end: %s\n' "$(our_processes | tr '\n' ' ')" >&2
      status=1
    }
    rm -rf "$run_folder"
  fi
  exit "$status"
}

# --- running ---------------------------------------------------------------------------------------------------------

# watched COMMAND… : in a process group of its own, so that a signal is acted on at once and reaches all of it; its
# output is kept for the totals. Job control also keeps SIGINT from being ignored in what it runs, which tests need.
watched() {
  local status=0
  set -m
  (
    set -o pipefail
    "$@" 2>&1 </dev/null | tee -a "$run_folder/output.log"
  ) &
  child=$!
  set +m
  wait "$child" || status=$?
  child=""
  return "$status"
}

need_tools() {
  command -v cargo >/dev/null || {
    servers_say "cargo is missing: install Rust (its version is in Cargo.toml, rust-version), see https://rustup.rs"
    exit 1
  }
  command -v cc >/dev/null || servers_apt_install gcc libc6-dev
}

# step NAME COMMAND… : goes on after a failure, so that one run tells everything.
step() {
  heading "$1"
  shift
  watched "$@" || failed+=("$*")
}

lint() {
  if cargo clippy --version >/dev/null 2>&1; then
    step "clippy" cargo clippy --all-targets --all-features -- -D warnings
  else
    servers_say "skipped, not installed: cargo clippy"
  fi
}

# cargo test and not one process a test: all tests share their servers. More at a time than there are cores: most wait for
# something most of the time.
run_tests() {
  export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
  # libtest takes several names only after the dashes.
  step "tests" cargo test --all-features --no-fail-fast -- "$@"
}

# Of the runner's own last lines: "ok. 3 passed; 0 failed; 1 ignored".
totals() {
  sed -E 's/\x1b\[[0-9;]*m//g' "$run_folder/output.log" | awk '
    /^test result: / {
      for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) passed += $(i - 1)
        if ($i ~ /^failed/ || $i ~ /^timed/) failed += $(i - 1)
        if ($i ~ /^skipped/ || $i ~ /^ignored/) skipped += $(i - 1)
      }
    }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }'
}

conclude() {
  heading "total"
  totals
  if [[ -n ${SETE_PG_SKIPPED:-} ]]; then printf 'not tested against: PostgreSQL %s\n' "$SETE_PG_SKIPPED"; fi
  if [[ -n ${SETE_MYSQL_SKIPPED:-} ]]; then printf 'not tested against: %s\n' "$SETE_MYSQL_SKIPPED"; fi
  printf '%d min %02d s\n' $((SECONDS / 60)) $((SECONDS % 60))
  local command
  for command in "${failed[@]}"; do printf 'FAILED: %s\n' "$command"; done
  ((${#failed[@]} == 0))
}

main() {
  failed=()
  trap clean_up EXIT
  trap 'interrupted=yes; exit 130' INT
  trap 'interrupted=yes; exit 143' TERM HUP
  cd "$here"
  heading "tools and servers"
  need_tools
  servers_all
  run_folder=$(mktemp -d "${TMPDIR:-/tmp}/sete-tests.XXXXXX")
  chmod 0755 "$run_folder" # user postgres has to get in, when root runs this
  export TMPDIR=$run_folder
  touch "$run_folder/output.log"
  if (($# == 0)); then lint; fi
  run_tests "$@"
  conclude
}

main "$@"
