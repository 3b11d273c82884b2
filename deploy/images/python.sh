#!/bin/sh
# Installs the locked dependencies of our containers, or our own package, into folders that become layers.
# usage: python.sh dependencies FOLDER     needs uv in $UV or on PATH; run it in the project's folder
#        python.sh package FOLDER          and python3.11
# environment: ARCHITECTURE    amd64 or arm64; without it: this machine's
set -eu

uv=${UV:-uv}
what=$1
place=$2/opt/moorings
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$place"
case ${ARCHITECTURE:-$(dpkg --print-architecture)} in
	amd64) platform=x86_64-manylinux_2_36 ;; # Debian 12's C library
	arm64) platform=aarch64-manylinux_2_36 ;;
	*)
		echo "error: our dependencies are not published for $ARCHITECTURE: amd64 or arm64" >&2
		exit 2
		;;
esac
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-315532800}" # the oldest time that a zip file can hold

into() {
	"$uv" pip install --quiet --target "$place" --python-version 3.11 --python-platform "$platform" \
		--link-mode copy --no-build --no-deps "$@"
}

case $what in
	dependencies)
		# Containers have no database: leave out its libraries.
		"$uv" export --quiet --locked --no-dev --no-emit-project --extra kubernetes --prune sqlalchemy --prune alembic \
			--format requirements.txt --output-file "$work/requirements.txt"
		into --require-hashes --requirements "$work/requirements.txt"
		;;
	package)
		"$uv" build --quiet --wheel --out-dir "$work"
		into "$work"/*.whl
		;;
	*)
		echo "error: unknown $what" >&2
		exit 2
		;;
esac
# Remove programs, and traces of this machine.
rm -rf "$place/bin" "$place/share" "$place/.lock"
find "$place" \( -name direct_url.json -o -name uv_cache.json -o -name RECORD -o -name INSTALLER -o -name REQUESTED \) -delete
find "$place" -name __pycache__ -type d -prune -exec rm -rf {} +
# Byte code, since the root file system is read-only: a launcher then starts in a quarter of the time.
python3.11 -m compileall -q -j 1 --invalidation-mode unchecked-hash -s "$2" "$place"
