#!/usr/bin/env bash
# MySQL and MariaDB for tests and examples; sourced by tests/servers.sh, which has the words that both use.
#
# Nothing is installed: the packages are unpacked into the cache folder, with all that they depend on, and run with their own
# loader and libraries. So the two, which conflict as packages, live side by side, no service is started, and a machine with
# an older libc runs the newest MySQL.
#
# SETE_MYSQL_97_BIN, SETE_MARIADB_1011_BIN and so on are folders with three small scripts:
#   init DATADIR     makes the data of a new server: user root without a password. A copy, which takes a tenth of the time
#   server ARG…      runs the server in the foreground; --datadir, --socket and --port are the caller's
#   client ARG…      the command-line client

# What to unpack: name, suite, packages. "own" is the suite that this machine has.
servers_mysql_packages() {
  cat <<'PACKAGES'
mariadb-distro own mariadb-server-core mariadb-client-core
mysql sid mysql-server-core mysql-client-core
mariadb-sid sid mariadb-server-core mariadb-client-core
PACKAGES
}

# Debian's unstable suite has the newest of both; Ubuntu has a MySQL of its own.
servers_mysql_wanted() {
  local id
  id=$(. /etc/os-release && printf '%s' "${ID:-}")
  case $id in
  debian) servers_mysql_packages ;;
  ubuntu) printf '%s\n' 'mariadb-distro own mariadb-server-core mariadb-client-core' 'mysql own mysql-server-core-8.0 mysql-client-core-8.0' ;;
  *) servers_say "no MySQL or MariaDB: packages are taken from Debian and Ubuntu only, this is ${id:-unknown}" ;;
  esac
}

# The machine's own mirror, and the key that it is signed with.
servers_mysql_mirror() {
  local uri
  uri=$(sed -n -E 's/^URIs: *([^ ]+).*/\1/p; s/^deb +(\[[^]]*\] +)?([^ ]+).*/\2/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources /etc/apt/sources.list 2>/dev/null | head -n 1)
  printf '%s' "${uri:-http://deb.debian.org/debian}"
}

servers_mysql_source() {
  local suite=$1 keyring parts=main
  . /etc/os-release
  if [[ $suite == own ]]; then suite=$VERSION_CODENAME; fi
  if [[ $ID == ubuntu ]]; then parts="main universe"; fi
  for keyring in /usr/share/keyrings/{debian,ubuntu}-archive-keyring.gpg; do
    if [[ $keyring == *"$ID"* && -e $keyring ]]; then break; fi
  done
  printf 'deb [signed-by=%s] %s %s %s\n' "$keyring" "$(servers_mysql_mirror)" "$suite" "$parts"
}

# servers_mysql_fetch NAME SUITE PACKAGE… : leaves NAME in the cache, or nothing.
servers_mysql_fetch() (
  name=$1 suite=$2 cache=$(servers_cache)
  shift 2
  work=$(mktemp -d "$cache/.fetch-$name.XXXXXX") || exit 1
  trap 'rm -rf "$work"' EXIT
  chmod 0755 "$work" # apt's own user has to get in
  mkdir -p "$work"/{lists/partial,cache/archives/partial,debs,root} || exit 1
  (servers_mysql_source "$suite") >"$work/list" || exit 1
  apt=(-q -o "Dir::Etc::sourcelist=$work/list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache"
    -o Dir::State::status=/dev/null -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Sandbox::User= -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
  servers_say "fetching $* ($suite)"
  apt-get "${apt[@]}" update >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 1; }
  mapfile -t packages < <(apt-cache "${apt[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances "$@" | grep -E '^[a-z0-9]' | sort -u)
  # Of those that only set up a system, or that one of several will do for, some can't be downloaded: those are left out.
  mapfile -t packages < <(apt-cache "${apt[@]}" policy "${packages[@]}" | awk '/^[^ ]+:$/ { name = substr($1, 1, length($1) - 1) } /Candidate:/ && $2 != "(none)" { print name }')
  ((${#packages[@]} > 5)) || { servers_say "$1 is not in suite $suite"; exit 1; }
  (cd "$work/debs" && apt-get "${apt[@]}" download "${packages[@]}") >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 1; }
  for deb in "$work"/debs/*.deb; do
    dpkg-deb -x "$deb" "$work/root" || exit 1
  done
  servers_mysql_scripts "$work/root" "$cache/$name" || exit 1
  chmod -R a+rX "$work/root" || exit 1
  rm -rf "${cache:?}/$name"
  mv "$work/root" "$cache/$name" || exit 1
  { "$cache/$name/bin/server" --version >"$cache/$name/.works" && servers_mysql_data "$cache/$name"; } || { rm -rf "${cache:?}/$name"; exit 1; }
  mv "$cache/$name/.works" "$cache/$name/sete-version"
)

# servers_mysql_data PLACE : the data that bin/init copies. A server makes its identity when it first starts.
servers_mysql_data() {
  TMPDIR=$1/tmp "$1/bin/first-init" "$1/data" >"$1/tmp/log" 2>&1 || { tail -n 5 "$1/tmp/log" >&2; return 1; }
  rm -rf "$1/data/auto.cnf" "$1/tmp"
  chmod -R a+rX "$1/data"
}

# servers_mysql_scripts WHERE PLACE : the three scripts, for a folder that is moved to PLACE afterwards.
servers_mysql_scripts() {
  local root=$1 place=$2 loader library run server client share=mysql
  loader=$(cd "$root" && find . -name 'ld-linux*.so.*' \( -type f -o -type l \) | sort | head -n 1)
  loader=$place/${loader#./}
  library=$(cd "$root" && find . -name 'libc.so.6' -o -name 'libstdc++.so.6' -o -name 'libprotobuf-lite.so.*' | sed -E "s,^\.(.*)/[^/]*$,$place\1," | sort -u | paste -sd:)
  run="exec '$loader' --library-path '$library:$place/usr/lib'"
  if [[ -e $root/usr/sbin/mariadbd ]]; then
    server=mariadbd client=mariadb
  else
    server=mysqld client=mysql
  fi
  if [[ ! -e $root/usr/share/$share ]]; then share=mariadb; fi
  # Debian moved /bin and /lib into /usr; a package of before the move has a bin of its own.
  mkdir -p "$root/bin" "$root/tmp" || return 1
  {
    printf '#!/bin/sh\n'
    printf "%s '%s' --no-defaults --basedir='%s' --lc-messages-dir='%s' --user=\"\$(id -un)\" \"\$@\"\n" "$run" "$place/usr/sbin/$server" "$place/usr" "$place/usr/share/$share"
  } >"$root/bin/server" || return 1
  printf "#!/bin/sh\n%s '%s' --no-defaults \"\$@\"\n" "$run" "$place/usr/bin/$client" >"$root/bin/client" || return 1
  if [[ $server == mysqld ]]; then
    printf '#!/bin/sh\nexec "%s/bin/server" --initialize-insecure --datadir="$1"\n' "$place" >"$root/bin/first-init" || return 1
  else
    servers_mariadb_init "$place" "$place/usr/share/$share" >"$root/bin/first-init" || return 1
  fi
  printf '#!/bin/sh\ncp -R "%s/data" "$1" && chmod -R u+rwX,go= "$1"\n' "$place" >"$root/bin/init" || return 1
  chmod +x "$root"/bin/{first-init,init,server,client}
}

# servers_mariadb_init PLACE SHARE : what mariadb-install-db does, which can't be told of another loader.
servers_mariadb_init() {
  cat <<INIT
#!/bin/sh
set -e
mkdir -p "\$1"
cd "$2"
{
  printf '%s\n' "create database if not exists mysql;" "use mysql;" "SET @auth_root_socket=NULL;"
  cat m*_system_tables.sql m*_performance_tables.sql m*_system_tables_data.sql fill_help_tables.sql maria_add_gis_sp_bootstrap.sql m*_sys_schema.sql
} | sed '/@current_hostname/d' | "$1/bin/server" --bootstrap --enforce-storage-engine= --datadir="\$1" --max-allowed-packet=8M --net-buffer-length=16K
INIT
}

# servers_mysql_export FOLDER : SETE_MYSQL_97_BIN, by what the server says of itself.
servers_mysql_export() {
  local bin=$1/bin version
  version=$("$bin/server" --version 2>/dev/null | sed -n -E 's/.*Ver ([0-9]+)\.([0-9]+)\..*/\1\2/p')
  [[ -n $version ]] || return 1
  if [[ -e $1/usr/sbin/mariadbd ]]; then
    export "SETE_MARIADB_${version}_BIN=$bin"
  else
    export "SETE_MYSQL_${version}_BIN=$bin"
  fi
  servers_say "$(sed -E 's/.*Ver ([^ ]+).*/\1/' "$1/sete-version"): $bin"
}

# Exports what there is, says what is skipped (also in SETE_MYSQL_SKIPPED). Fails never: PostgreSQL's tests need none of it.
servers_mysql_all() {
  local name suite packages cache skipped=()
  cache=$(servers_cache)
  mkdir -p "$cache"
  while read -r name suite packages <&3; do
    (
      flock -w 600 9 || exit 1
      # shellcheck disable=SC2086 # a list of packages
      [[ -e $cache/$name/sete-version && -e $cache/$name/data ]] || servers_mysql_fetch "$name" "$suite" $packages
    ) 9>"$cache/$name.lock" && servers_mysql_export "$cache/$name" || skipped+=("$name")
  done 3< <(servers_mysql_wanted)
  export SETE_MYSQL_SKIPPED="${skipped[*]:-}"
  if [[ -n $SETE_MYSQL_SKIPPED ]]; then servers_say "skipped, could not be fetched: $SETE_MYSQL_SKIPPED"; fi
}
