#!/usr/bin/env bash
# Prints the folder with PostgreSQL's server programs, for the tests: this machine's, or else Debian's own packages,
# unpacked under .tools/postgresql. Installs nothing and never touches a running server: an unpacked package starts no
# server, creates no user and is removed with .tools.
# usage: find-postgresql.sh [--unpack]     --unpack: ignore this machine's
set -euo pipefail

OLDEST=14 # also in src/moorings/store/session.py

cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$PWD/.tools/postgresql
by_hand="install a server (Debian: apt-get install postgresql) or put the folder of its initdb on PATH; any release from $OLDEST on"

say() { printf 'postgresql: %s\n' "$*" >&2; }
die() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 1; }

# usable FOLDER: whether it has a server that we can use
usable() {
	local version
	[[ -x $1/initdb && -x $1/postgres ]] || return 1
	version=$(LD_LIBRARY_PATH=$(libraries "$1") "$1/postgres" --version 2>/dev/null | grep -oE '[0-9]+' | head -n 1) || return 1
	((version >= OLDEST))
}

# libraries FOLDER: the libraries that were unpacked with the programs
libraries() {
	local paths=("$1"/../../../*-linux-gnu*)
	[[ $1 != "$folder"/* || ! -d ${paths[0]} ]] || printf '%s' "$(cd "${paths[0]}" && pwd)"
}

found() {
	say "${1/#"$PWD"\//}"
	printf '%s\n' "$1"
	exit
}

# Folders that may have the programs, the newest release first.
candidates() {
	local initdb
	! command -v pg_config >/dev/null || pg_config --bindir
	printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV
	if initdb=$(command -v initdb); then dirname "$(readlink -f "$initdb")"; fi
}

unpacked() { printf '%s\n' "$folder"/root/usr/lib/postgresql/*/bin | sort -rV | head -n 1; }

# The package, and the libraries that it needs and this machine lacks; other programs and scripts are not used.
missing_packages() {
	printf '%s\n' "$1"
	apt-get install --simulate --no-install-recommends "$1" 2>/dev/null |
		awk -v package="$1" '$1 == "Inst" && $2 != package && $2 ~ /^(lib|tzdata$)/ { print $2 }'
}

server_package() { apt-cache search --names-only '^postgresql-[0-9]+$' | awk '{ print $1 }' | sort -rV | head -n 1; }

unpack() {
	local package packages log=$folder/apt.log
	command -v apt-get >/dev/null && command -v dpkg >/dev/null || die "there is no PostgreSQL server here, and no apt-get" "$by_hand"
	package=$(server_package)
	if [[ -z $package ]]; then
		((EUID == 0)) || die "there is no PostgreSQL server here, and apt has no package lists" "as root, run: apt-get update; or $by_hand"
		apt-get update >"$log" 2>&1 || { tail -n 5 "$log" >&2; die "apt-get update failed" "$by_hand"; }
		package=$(server_package)
		[[ -n $package ]] || die "this system has no package of a PostgreSQL server" "$by_hand"
	fi
	mapfile -t packages < <(missing_packages "$package")
	say "downloading ${packages[*]} into .tools/postgresql (log: .tools/postgresql/apt.log)"
	rm -rf "$folder/packages" "$folder/root.part"
	mkdir -p "$folder/packages" "$folder/root.part"
	(cd "$folder/packages" && apt-get download "${packages[@]}") >>"$log" 2>&1 ||
		{ tail -n 5 "$log" >&2; die "apt-get could not download ${packages[*]}" "as root, run: apt-get update; or $by_hand"; }
	local file
	for file in "$folder"/packages/*.deb; do
		dpkg --extract "$file" "$folder/root.part"
	done
	rm -rf "$folder/packages" "$folder/root"
	mv "$folder/root.part" "$folder/root"
}

if [[ ${1:-} != --unpack ]]; then
	while read -r candidate; do
		! usable "$candidate" || found "$candidate"
	done < <(candidates)
fi
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9 # tests run in several processes
usable "$(unpacked)" || unpack
usable "$(unpacked)" || die "the PostgreSQL server unpacked in .tools/postgresql cannot be started" "$by_hand"
found "$(unpacked)"
