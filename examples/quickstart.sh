#!/usr/bin/env bash
# One destructive change, from the first look to the dropped column, on a throwaway server with a live application.
#
#   examples/quickstart.sh             on PostgreSQL
#   examples/quickstart.sh mysql       on MySQL
#   examples/quickstart.sh mariadb     on MariaDB
#
# orders.status, a varchar, becomes status_v2, an enum. Meanwhile four clients write and read the table without a pause;
# at the end it says what they noticed, which must be nothing. The waits are seconds here; a real plan says hours or days.
# Needs a Rust toolchain. Installs PostgreSQL if there is none; MySQL and MariaDB are unpacked into a cache folder (Debian,
# Ubuntu). Leaves nothing else behind but target/.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tests/servers.sh
source "$here/tests/servers.sh"

rows=${QUICKSTART_ROWS:-200000}
engine=${1:-postgres}
case $engine in
postgres) table=public.orders ;;
mysql | mariadb) table=shop.orders ;;
*)
  printf 'quickstart: postgres, mysql or mariadb, not %s\n' "$engine" >&2
  exit 2
  ;;
esac

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

# query SQL : one statement, or those on stdin; columns are divided by |.
query() {
  if [[ $engine == postgres ]]; then
    "$SETE_PG_BIN/psql" -X -A -t -q -v ON_ERROR_STOP=1 ${1:+-c "$1"} "$DATABASE_URL"
  else
    "$mysql_bin/client" --protocol=tcp --host=127.0.0.1 --port="$SERVER_PORT" --user=root -N -B ${1:+-e "$1"} | tr '\t' '|'
  fi
}

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
    if [[ $engine == postgres ]]; then server_stop "${SETE_PG_BIN:-}" "$folder/server"; else mysql_stop; fi
    cd /
    rm -rf "$folder"
  fi
  exit "$status"
}

find_server() {
  if [[ $engine == postgres ]]; then
    servers_distro
    return
  fi
  servers_mysql_all
  local variable
  variable=$(compgen -v | grep -E "^SETE_${engine^^}_[0-9]+_BIN$" | sort -V | tail -n 1)
  [[ -n $variable ]] || die "no $engine could be fetched: see above"
  mysql_bin=${!variable}
}

start_server() {
  folder=$(mktemp -d "${TMPDIR:-/tmp}/sete-quickstart.XXXXXX")
  chmod 0755 "$folder" # user postgres has to get in, when root runs this
  if [[ $engine == postgres ]]; then
    server_start "$SETE_PG_BIN" "$folder/server" max_connections=50
    export DATABASE_URL="postgres://postgres@127.0.0.1:$SERVER_PORT/postgres"
    say "PostgreSQL $(query 'show server_version') in $folder, DATABASE_URL=$DATABASE_URL"
  else
    mysql_start
    export DATABASE_URL="mysql://root@127.0.0.1:$SERVER_PORT/shop"
    query 'create database shop'
    say "$(query 'select version()') in $folder, DATABASE_URL=$DATABASE_URL"
  fi
}

mysql_start() {
  mkdir "$folder/tmp" # of its own: a server that starts clears the temporary tables of others
  TMPDIR=$folder/tmp "$mysql_bin/init" "$folder/data" >"$folder/init.log" 2>&1 || die "the server's data could not be made: $(tail -n 5 "$folder/init.log")"
  SERVER_PORT=$(server_free_port)
  local options=(--datadir="$folder/data" --socket="$folder/socket" --port="$SERVER_PORT" --bind-address=127.0.0.1 --pid-file="$folder/pid" --tmpdir="$folder/tmp" --log-bin-trust-function-creators=1)
  if [[ $engine == mysql ]]; then options+=(--mysqlx=OFF --secure-file-priv=NULL); fi
  "$mysql_bin/server" "${options[@]}" >"$folder/server.log" 2>&1 </dev/null &
  mysql_pid=$!
  for _ in {1..300}; do
    if query 'select 1' >/dev/null 2>&1; then return; fi
    kill -0 "$mysql_pid" 2>/dev/null || break
    sleep 0.1
  done
  die "the server does not start: $(tail -n 5 "$folder/server.log")"
}

mysql_stop() {
  if [[ -n ${mysql_pid:-} ]]; then
    kill -TERM "$mysql_pid" 2>/dev/null || true
    wait "$mysql_pid" 2>/dev/null || true
  fi
}

create_table() {
  "create_table_in_$([[ $engine == postgres ]] && echo postgres || echo mysql)"
  say "$table has $(query "select count(*) from $table") rows"
}

create_table_in_mysql() {
  query <<SQL
create table shop.orders (
  id          bigint unsigned not null auto_increment primary key,
  customer_id int          not null,
  status      varchar(20)  not null default 'new',
  total_cents int          not null,
  note        text,
  created_at  datetime     not null default current_timestamp,
  updated_at  timestamp(6) not null default current_timestamp(6) on update current_timestamp(6),
  key orders_status (status),
  key orders_customer (customer_id, created_at)
);
insert into shop.orders (customer_id, status, total_cents, note, created_at)
select floor(rand() * 5000),
       elt(1 + n % 8, 'new', 'paid', 'packed', 'shipped', 'delivered', 'returned', 'cancelled', 'refunded'),
       floor(rand() * 90000) + 100,
       concat('order ', n),
       now() - interval n minute
  from (select a.n * 1000 + b.n + 1 as n
          from (with recursive t as (select 0 n union all select n + 1 from t where n < 999) select n from t) a
          join (with recursive t as (select 0 n union all select n + 1 from t where n < 999) select n from t) b
         where a.n * 1000 + b.n < $rows) numbers;
analyze table shop.orders;
SQL
}

create_table_in_postgres() {
  query <<SQL
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
  from generate_series(1, $rows) n;
create index orders_status on public.orders (status);
create index orders_customer on public.orders (customer_id, created_at);
create type order_status as enum ('new', 'paid', 'packed', 'shipped', 'delivered', 'returned', 'cancelled', 'refunded');
analyze public.orders;
SQL
}

# As plans/orders_status.toml, but impatient.
write_plan() {
  local kind=mysql change="type    = \"enum('new', 'paid', 'packed', 'shipped', 'delivered', 'returned', 'cancelled', 'refunded')\""
  if [[ $engine == postgres ]]; then
    kind=postgres change=$'type    = "order_status"\nforward = "status::order_status"\nreverse = "status_v2::text"'
  fi
  cat >orders_status.toml <<PLAN
id       = "orders-status"
engine   = "$kind"
database = "env:DATABASE_URL"

[change]
kind    = "type"
table   = "$table"
from    = "status"
to      = "status_v2"
$change

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
  "$workload" --table "$table" --control release --out application.json >/dev/null 2>application.log &
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
  compare compared differ
  say "$compared rows, $differ differ"
  frozen_at=$(query 'select current_timestamp(6)')
}

# compare ALL DIFFERENT [CONDITION] : puts how many rows there are, and how many differ, into these two variables.
compare() {
  local answer differs="not (cast(status as char(20)) <=> cast(status_v2 as char(20)))"
  if [[ $engine == postgres ]]; then differs="status is distinct from status_v2::text"; fi
  local sql="select count(*), count(case when $differs then 1 end) from $table${3:+ where $3}"
  printf '\n# %s\n' "$sql"
  # sete counts who still reads the old column before it drops it: this look is not to be one of them.
  if [[ $engine == mysql ]]; then sql="update performance_schema.threads set instrumented = 'NO' where processlist_id = connection_id(); $sql"; fi
  answer=$(query "$sql")
  IFS='|' read -r "$1" "$2" <<<"$answer"
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
  compare frozen frozen_differ "updated_at <= '$frozen_at'"
  say "$frozen rows not written since stage 6 began, $frozen_differ differ"
}

old_column_goes() {
  heading "7 drop: the only step without a way back"
  run sete step orders_status.toml --yes --wait 2m
  run sete status orders_status.toml
  left=$(query "select count(*) from information_schema.columns where table_name = 'orders' and table_schema in ('shop', 'public') and column_name = 'status'")
  sleep 2 # the application goes on without the column
}

# --- the end ---------------------------------------------------------------------------------------------------------

# number KEY : of the first `"KEY": number` in the application's summary, which is pretty-printed JSON.
number() { sed -nE "s/^ *\"$1\": ([0-9.]+),?$/\1/p" application.json | head -n 1; }

summarise() {
  local statements failed wrong slowest rows_now
  statements=$(number statements) failed=$(number failed) wrong=$(number wrong)
  slowest=$(sed -n 's/^slowest: //p' application.log)
  rows_now=$(query "select count(*) from $table")
  heading "What the application noticed"
  sed -n '/ statements in /,$p' application.log
  cat <<SUMMARY

statements run       $statements
statements failed    $failed
wrong results        $wrong
its slowest          $slowest
rows                 $rows before, $rows_now now
old and new agreed   $compared rows compared under load, $differ differ; then $frozen frozen rows, $frozen_differ differ
column status        $([[ $left == 0 ]] && echo "is gone" || echo "IS STILL THERE")
time                 $((SECONDS - started)) s for the seven stages, $SECONDS s in all
SUMMARY
  if ((application_status != 0 || failed != 0 || wrong != 0 || differ != 0 || frozen_differ != 0 || compared == 0)) || [[ $left != 0 ]]; then
    die "the application noticed something, or the columns disagreed: see above"
  fi
  printf '\nThe application noticed nothing.\n'
}

main() {
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  heading "Preparing: $engine, sete, a table, an application"
  find_server
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
