#!/usr/bin/env bash
# Prints the folder of a small Debian with another release of Slurm, for tests/slurm: made under .tools/slurm-RELEASE by
# debootstrap (itself unpacked from Debian's package if it is missing). Installs and starts nothing on this machine; every
# mount is made in its own namespace, so none remains.
# usage: slurm-release.sh 22.05|24.11|26.05      as root; needs the network, about half a minute and 200 MB, once
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
release=${1:-}
folder=$PWD/.tools/slurm-$release
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
packages=(slurm-wlm slurm-wlm-basic-plugins slurm-wlm-mysql-plugin slurmdbd libslurm-dev)

say() { printf 'slurm-release: %s\n' "$*" >&2; }
die() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 1; }

case $release in # the Debian that has it
	22.05) suite=bookworm ;;
	24.11) suite=trixie ;;
	26.05) suite=sid ;;
	*) die "no Debian is known to have Slurm '$release'" "give one of 22.05, 24.11, 26.05" ;;
esac
((EUID == 0)) || die "only root can make a chroot" "run it as root"

# inside COMMAND...: run it in the chroot that is being built
inside() {
	# shellcheck disable=SC2016
	unshare --mount --propagation private -- sh -euc '
		mount -t proc proc "$0/proc"
		exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"
	' "$part" "$@"
}

# release of the Slurm in a chroot; empty: none
release_of() { { [[ ! -d $1 ]] || chroot "$1" slurmctld -V; } 2>/dev/null | grep -oE "[0-9]+\.[0-9]+" | head -n 1 || true; }

find_debootstrap() {
	local unpacked=$PWD/.tools/debootstrap
	if command -v debootstrap >/dev/null; then
		debootstrap=(debootstrap)
		return
	fi
	if [[ ! -e $unpacked/usr/sbin/debootstrap ]]; then
		command -v apt-get >/dev/null || die "there is neither debootstrap nor apt-get here" "install debootstrap"
		rm -rf "$unpacked" "$unpacked.part"
		mkdir -p "$unpacked.part"
		(cd "$unpacked.part" && { apt-get download debootstrap || { apt-get update && apt-get download debootstrap; }; }) >>"$log" 2>&1 ||
			die "debootstrap could not be downloaded (log: $log)" "install debootstrap"
		dpkg-deb -x "$unpacked.part"/debootstrap_*.deb "$unpacked.part"
		mv "$unpacked.part" "$unpacked"
	fi
	debootstrap=(env "DEBOOTSTRAP_DIR=$unpacked/usr/share/debootstrap" "$unpacked/usr/sbin/debootstrap")
}

make_it() {
	part=$folder.part
	rm -rf "$part"
	find_debootstrap
	say "making a Debian $suite in ${part#"$PWD"/} (log: ${log#"$PWD"/})"
	unshare --mount --propagation private -- \
		"${debootstrap[@]}" --variant=minbase --keyring="$keyring" "$suite" "$part" "$mirror" >>"$log" 2>&1 ||
		{ tail -n 5 "$log" >&2; die "debootstrap failed" "see $log"; }
	printf '#!/bin/sh\nexit 101\n' >"$part/usr/sbin/policy-rc.d" # no package starts a service
	chmod 755 "$part/usr/sbin/policy-rc.d"
	say "installing ${packages[*]} in it"
	# A mirror with expired lists is still signed, and good enough for a test.
	{ inside apt-get -o Acquire::Check-Valid-Until=false update && inside apt-get install -y --no-install-recommends "${packages[@]}"; } >>"$log" 2>&1 ||
		{ tail -n 5 "$log" >&2; die "apt-get failed in the chroot" "see $log"; }
	touch "$part/etc/hosts" # this machine's is mounted over it
	inside apt-get clean
	rm -rf "$part"/var/lib/apt/lists/*
	[[ $(release_of "$part") == "$release" ]] ||
		die "Debian $suite has Slurm $(release_of "$part"), not $release" "this release moved on: name the Debian that has it in $0"
	rm -rf "$folder"
	mv "$part" "$folder"
}

mkdir -p .tools
log=$folder.log
exec 9>"$folder.lock"
flock 9 # tests run in several processes
[[ $(release_of "$folder") == "$release" ]] || make_it
printf '%s\n' "$folder"
