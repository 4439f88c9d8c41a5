#!/usr/bin/env bash
# The benchmark on a throwaway PostgreSQL: how fast a backfill is, and what an application feels of it.
#
#   examples/bench.sh                            shape (a), without and with a live application
#   examples/bench.sh --shape uuid --rounds 5    what `bench --help` lists
#
# The server has fsync on and autovacuum off (it would fall on one way or the other by chance). Leaves nothing but target/.
# SETE_PG_BIN chooses the server's binaries.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/servers.sh
source "$here/tests/servers.sh"

clean_up() {
  local status=$?
  trap - EXIT INT TERM HUP
  if [[ -n ${folder:-} ]]; then
    server_stop "$SETE_PG_BIN" "$folder/server"
    cd /
    rm -rf "$folder"
  fi
  exit "$status"
}

bench() { cargo run --quiet --release --manifest-path "$here/Cargo.toml" --example bench -- "$@"; }

main() {
  if [[ -z ${SETE_PG_BIN:-} ]]; then servers_distro; fi
  cargo build --release --manifest-path "$here/Cargo.toml" --example bench
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  folder=$(mktemp -d "${TMPDIR:-/tmp}/sete-bench.XXXXXX")
  chmod 0755 "$folder" # user postgres has to get in, when root runs this
  server_start "$SETE_PG_BIN" "$folder/server" fsync=on shared_buffers=512MB max_wal_size=4GB checkpoint_timeout=30min autovacuum=off
  export DATABASE_URL="postgres://postgres@127.0.0.1:$SERVER_PORT/postgres"
  if (($# > 0)); then
    bench "$@"
  else
    bench --validate
    bench --live 100
  fi
}

main "$@"
