#!/usr/bin/env bash
# Makes LINK point to a usable uv: the one on PATH, if it is new enough; else a pinned one in a private environment under
# .tools/. Never touches the system's Python. It installs at most Debian's python3-venv (which Debian's python3 lacks) and
# ca-certificates, and only as root or through sudo.
set -euo pipefail

UV_VERSION=0.13.8 # also in pyproject.toml, [tool.uv] required-version
PYTHON_VERSION=3.11

link=${1:?usage: bootstrap-uv.sh LINK}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=$PWD/.tools
PATH=$PATH:/usr/sbin:/sbin # dpkg needs them, and some callers lack them

say() { printf 'bootstrap: %s\n' "$*" >&2; }
die() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 1; }

# point_to UV: make LINK point to it
point_to() {
	mkdir -p "$(dirname "$link")"
	ln -sfn "$1" "$link"
	touch -h "$link"
}

new_enough() {
	local version
	version=$("$1" --version 2>/dev/null | awk '{ print $2 }') || return 1
	[[ $version == [0-9]* ]] && printf '%s\n%s\n' "$UV_VERSION" "$version" | sort -C -V
}

# The machine's Python: the first python3 on PATH, which uv chooses too.
require_python() {
	local how="install Python $PYTHON_VERSION or newer (Debian 12: apt-get install python3) and run make again"
	command -v python3 >/dev/null || die "there is no python3 on PATH" "$how"
	python3 -c "import sys; sys.exit(sys.version_info < (${PYTHON_VERSION/./, }))" ||
		die "$(python3 --version) is too old" "$how"
}

missing_packages() {
	python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
	# Debian's pip and our uv trust the system's TLS roots; a bare machine may have none.
	[[ -n ${SSL_CERT_FILE:-} || -e /etc/ssl/certs/ca-certificates.crt || ! -e /etc/debian_version ]] || echo ca-certificates
}

# install_packages NAME...: with apt-get, as root or through sudo; else print what the user must do
install_packages() {
	local as_root=()
	local by_hand="as root, run: apt-get update && apt-get install --no-install-recommends $* (or put uv $UV_VERSION on PATH: https://docs.astral.sh/uv/); then run make again"
	command -v apt-get >/dev/null || die "this machine's Python lacks $*, and there is no apt-get here" \
		"install Python's venv and ensurepip with this system's package manager, or put uv $UV_VERSION on PATH"
	if ((EUID != 0)); then
		command -v sudo >/dev/null || die "$* is missing, and this is neither root nor has sudo" "$by_hand"
		as_root=(sudo)
		[[ -t 0 ]] || as_root+=(--non-interactive) # no user is there to type a password
	fi
	say "installing $* with apt-get (log: .tools/apt.log)"
	mkdir -p "$tools"
	if ! { "${as_root[@]}" apt-get update &&
		"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } \
		>"$tools/apt.log" 2>&1; then
		tail -n 5 "$tools/apt.log" >&2
		die "apt-get could not install $*" "$by_hand"
	fi
}

install_uv() {
	local environment=$tools/uv-$UV_VERSION
	if ! new_enough "$environment/bin/uv"; then
		say "installing uv $UV_VERSION into ${environment#"$PWD"/}"
		rm -rf "$environment"
		python3 -m venv "$environment" || die "python3 -m venv failed" "see the message above"
		if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then
			export PIP_CERT=${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
		fi
		"$environment/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check --only-binary :all: \
			"uv==$UV_VERSION" >&2 || die "pip could not install uv $UV_VERSION" \
			"is the package index reachable? HTTPS_PROXY, PIP_INDEX_URL and SSL_CERT_FILE (a site's own TLS root) are honoured"
	fi
	point_to "$environment/bin/uv"
}

require_python
if found=$(command -v uv) && new_enough "$found"; then
	point_to "$found"
	exit
fi
packages=$(missing_packages)
if [[ -n $packages ]]; then
	# shellcheck disable=SC2086 # one word for each package
	install_packages $packages
fi
install_uv
