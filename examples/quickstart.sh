#!/usr/bin/env bash
# One destructive change, from the first look to the dropped column, on a throwaway PostgreSQL with a live application.
#
#   examples/quickstart.sh
#
# orders.status, a varchar, becomes status_v2, an enum. Meanwhile four clients write and read the table without a pause;
# at the end it says what they noticed, which must be nothing. The waits are seconds here; a real plan says hours or days.
# Needs a Rust toolchain; installs PostgreSQL if there is none (Debian, Ubuntu). Leaves nothing behind but target/.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/servers.sh
source "$here/tests/servers.sh"

rows=${QUICKSTART_ROWS:-200000}

# --- telling ---------------------------------------------------------------------------------------------------------

heading() { printf '\n=== %s\n' "$*"; }
say() { printf '# %s\n' "$*"; }
die() {
  printf '\nquickstart: %s\n' "$*" >&2
  exit 1
}

# Shows a command as one would type it, then runs it.
run() {
  printf '\n$ %s\n' "$*"
  "$@"
}

# expect STATUS COMMAND… : the exit status is part of what is shown.
expect() {
  local wanted=$1 status=0
  shift
  run "$@" || status=$?
  say "exit status $status"
  ((status == wanted)) || die "\`$*\` ended with exit status $status, not $wanted"
}

query() { "$SETE_PG_BIN/psql" -X -A -t -q -v ON_ERROR_STOP=1 "$DATABASE_URL" "$@"; }

# --- preparing -------------------------------------------------------------------------------------------------------

build() {
  command -v cargo >/dev/null || die "cargo is missing: install Rust first, see https://rustup.rs"
  command -v cc >/dev/null || servers_apt_install gcc libc6-dev
  run cargo build --quiet --bin sete --example workload --manifest-path "$here/Cargo.toml"
  local target
  target=$(cargo metadata --format-version 1 --no-deps --offline --manifest-path "$here/Cargo.toml" | sed -E 's/.*"target_directory":"([^"]+)".*/\1/')
  PATH="$target/debug:$PATH" # so that the commands below are what one would type
  workload=$target/debug/examples/workload
}

# Ends what this script started, whatever happened.
clean_up() {
  local status=$?
  trap - EXIT INT TERM HUP
  if [[ -n ${workload_pid:-} ]]; then
    kill -TERM "$workload_pid" 2>/dev/null || true
    wait "$workload_pid" 2>/dev/null || true
  fi
  if [[ -n ${folder:-} ]]; then
    server_stop "${SETE_PG_BIN:-}" "$folder/server"
    cd /
    rm -rf "$folder"
  fi
  exit "$status"
}

start_server() {
  folder=$(mktemp -d "${TMPDIR:-/tmp}/sete-quickstart.XXXXXX")
  chmod 0755 "$folder" # user postgres has to get in, when root runs this
  server_start "$SETE_PG_BIN" "$folder/server" max_connections=50
  export DATABASE_URL="postgres://postgres@127.0.0.1:$SERVER_PORT/postgres"
  say "PostgreSQL $(query -c 'show server_version') in $folder, DATABASE_URL=$DATABASE_URL"
}

create_table() {
  query -v rows="$rows" <<'SQL'
create table public.orders (
  id          bigint generated always as identity primary key,
  customer_id int          not null,
  status      varchar(20)  not null default 'new',
  total_cents int          not null,
  note        text,
  created_at  timestamptz  not null default now(),
  updated_at  timestamptz  not null default now(),
  constraint orders_status_known check (
    status in ('new', 'paid', 'packed', 'shipped', 'delivered', 'returned', 'cancelled', 'refunded'))
);
insert into public.orders (customer_id, status, total_cents, note, created_at, updated_at)
select (random() * 5000)::int,
       (array['new', 'paid', 'packed', 'shipped', 'delivered', 'returned', 'cancelled', 'refunded'])[1 + n % 8],
       (random() * 90000)::int + 100,
       'order ' || n,
       now() - n * interval '1 minute',
       now() - n * interval '1 minute'
  from generate_series(1, :rows) n;
create index orders_status on public.orders (status);
create index orders_customer on public.orders (customer_id, created_at);
create type order_status as enum ('new', 'paid', 'packed', 'shipped', 'delivered', 'returned', 'cancelled', 'refunded');
analyze public.orders;
SQL
  say "public.orders has $(query -c 'select count(*) from public.orders') rows"
}

# As plans/orders_status.toml, but impatient.
write_plan() {
  cat >orders_status.toml <<'PLAN'
id       = "orders-status"
engine   = "postgres"
database = "env:DATABASE_URL"

[change]
kind    = "type"
table   = "public.orders"
from    = "status"
to      = "status_v2"
type    = "order_status"
forward = "status::order_status"
reverse = "status_v2::text"

[validate]
apart = "2s"      # a real plan: hours

[read_switch]
soak = "2s"       # a real plan: a day

[stop_writes]
quiet_for = "3s"  # a real plan: a day, or the longest pause of a nightly job

[drop]
soak = "2s"       # a real plan: days
PLAN
  run cat orders_status.toml
}

# --- the application -------------------------------------------------------------------------------------------------

start_application() {
  echo old >release
  "$workload" --control release --out application.json >/dev/null 2>application.log &
  workload_pid=$!
  wait_for_log 'clients run'
  say "the application runs: four clients, web-1 to web-4, which know nothing but status"
}

# wait_for_log TEXT
wait_for_log() {
  for _ in {1..300}; do
    if grep -q "$1" application.log; then return; fi
    kill -0 "$workload_pid" 2>/dev/null || die "the application ended early: $(cat application.log)"
    sleep 0.1
  done
  die "the application did not say \`$1\`: $(cat application.log)"
}

# deploy RELEASE WHAT : client by client, no restart.
deploy() {
  echo "$1" >release.next
  mv release.next release
  wait_for_log "deployed $1"
  say "deployed, client by client: $2"
}

stop_application() {
  kill -TERM "$workload_pid"
  application_status=0
  wait "$workload_pid" || application_status=$?
  workload_pid=""
}

# --- the seven stages ------------------------------------------------------------------------------------------------

first_look() {
  heading "What is going to happen"
  run sete plan orders_status.toml
  run sete status orders_status.toml
}

new_column_fills() {
  heading "1 expand, 2 dual_write, 3 backfill: the new column appears, follows the old one, and gets the history"
  run sete step orders_status.toml
  run sete step orders_status.toml --wait 2m
  say "may CI deploy the release that reads status_v2?"
  expect 4 sete gate orders_status.toml --for read-new
  run sete step orders_status.toml --wait 5m
  run sete status orders_status.toml
}

reads_move() {
  heading "4 validate: both columns agree, twice, and the new one has the same indexes and constraints"
  run sete step orders_status.toml --wait 5m
  expect 0 sete gate orders_status.toml --for read-new
  deploy old/new "reads status_v2, still writes status"
  heading "5 read_switch: that release soaks"
  expect 4 sete gate orders_status.toml --for write-new
  run sete step orders_status.toml --wait 2m
  expect 0 sete gate orders_status.toml --for write-new
  deploy new/new "knows nothing but status_v2"
}

# While both columns are in sync, one statement sees every row in one moment.
compare_all() {
  heading "Do old and new agree, under load?"
  local answer sql="select count(*), count(*) filter (where status is distinct from status_v2::text) from public.orders"
  printf '\n$ psql -c "%s"\n' "$sql"
  answer=$(query -c "$sql")
  IFS='|' read -r compared differ <<<"$answer"
  say "$compared rows, $differ differ"
  frozen_at=$(query -c 'select clock_timestamp()')
}

old_column_freezes() {
  heading "6 stop_writes: nobody writes the old column any more, so the sync goes and the column freezes"
  expect 4 sete gate orders_status.toml --for drop
  run sete step orders_status.toml --wait 2m
  expect 0 sete gate orders_status.toml --for drop --wait 1m
  run sete status orders_status.toml
}

# Rows that were written since then differ, rightly: the application knows only the new column. All others must not.
compare_frozen() {
  local answer sql="select count(*), count(*) filter (where status is distinct from status_v2::text) from public.orders where updated_at <= '$frozen_at'"
  printf '\n$ psql -c "%s"\n' "$sql"
  answer=$(query -c "$sql")
  IFS='|' read -r frozen frozen_differ <<<"$answer"
  say "$frozen rows not written since stage 6 began, $frozen_differ differ"
}

old_column_goes() {
  heading "7 drop: the only step without a way back"
  run sete step orders_status.toml --yes --wait 2m
  run sete status orders_status.toml
  dropped=$(query -c "select count(*) = 0 from pg_attribute where attrelid = 'public.orders'::regclass and attname = 'status' and not attisdropped")
  sleep 2 # the application goes on without the column
}

# --- the end ---------------------------------------------------------------------------------------------------------

# number KEY : of the first `"KEY": number` in the application's summary, which is pretty-printed JSON.
number() { sed -nE "s/^ *\"$1\": ([0-9.]+),?$/\1/p" application.json | head -n 1; }

summarise() {
  local statements failed wrong slowest rows_now
  statements=$(number statements) failed=$(number failed) wrong=$(number wrong)
  slowest=$(sed -n 's/^slowest: //p' application.log)
  rows_now=$(query -c 'select count(*) from public.orders')
  heading "What the application noticed"
  sed -n '/ statements in /,$p' application.log
  cat <<SUMMARY

statements run       $statements
statements failed    $failed
wrong results        $wrong
its slowest          $slowest
rows                 $rows before, $rows_now now
old and new agreed   $compared rows compared under load, $differ differ; then $frozen frozen rows, $frozen_differ differ
column status        $([[ $dropped == t ]] && echo "is gone" || echo "IS STILL THERE")
time                 $((SECONDS - started)) s for the seven stages, $SECONDS s in all
SUMMARY
  if ((application_status != 0 || failed != 0 || wrong != 0 || differ != 0 || frozen_differ != 0 || compared == 0)) || [[ $dropped != t ]]; then
    die "the application noticed something, or the columns disagreed: see above"
  fi
  printf '\nThe application noticed nothing.\n'
}

main() {
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  heading "Preparing: PostgreSQL, sete, a table, an application"
  servers_distro
  build
  start_server
  cd "$folder"
  create_table
  write_plan
  start_application
  started=$SECONDS
  first_look
  new_column_fills
  reads_move
  compare_all
  old_column_freezes
  compare_frozen
  old_column_goes
  stop_application
  summarise
}

main
