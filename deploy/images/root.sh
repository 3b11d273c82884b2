#!/bin/sh
# Unpacks Debian's packages into a folder that becomes a layer. Runs nothing of them, so it needs no special rights, and makes
# layers for any architecture on any other; does itself those parts of their scripts that our programs need.
# The Dockerfile and scripts/image.py both use it.
# usage: root.sh FOLDER PACKAGE...         in FOLDER: a root with Python; needs python3.11
#        root.sh --only FROM TO FOLDER PACKAGE    only that file of the package, elsewhere, and its licence
#        root.sh --newest PACKAGE...      prints the newest version of each, and the suite that has it
# environment: ARCHITECTURE    amd64, arm64...; without it: this machine's
#              DEBIAN_MIRROR   without it: http://deb.debian.org/debian; security fixes come from the same name with -security
set -eu

SUITE=bookworm # the Debian with Python 3.11, and the last one with a static kubectl

only= folder=
if [ "$1" = --only ]; then
	only=$2
	to=$3
	shift 3
fi
[ "$1" = --newest ] || folder=$1
shift
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/debs" "$work/root" "$work/lists/partial" "$work/cache/archives/partial" "$work/parts"

# apt with its own lists: the newest packages of the suite and its security fixes, independent of this machine's lists.
: >"$work/status"
for suite in "$mirror $SUITE" "$mirror $SUITE-updates" "$mirror-security $SUITE-security"; do
	echo "deb $signed $suite main"
done >"$work/list"
cat >"$work/conf" <<CONF
APT::Architecture "${ARCHITECTURE:-$(dpkg --print-architecture)}";
APT::Architectures { "${ARCHITECTURE:-$(dpkg --print-architecture)}"; };
APT::Sandbox::User "";
APT::Update::Error-Mode "any"; # without the security fixes' list it would continue, and pack old packages
Dir::Etc::SourceList "$work/list";
Dir::Etc::SourceParts "$work/parts";
Dir::Etc::PreferencesParts "$work/parts";
Dir::State "$work";
Dir::State::Lists "$work/lists";
Dir::State::Status "$work/status";
Dir::Cache "$work/cache";
Acquire::Check-Valid-Until "false"; # a mirror with expired lists is still signed
Acquire::Languages "none";
Acquire::Retries "3";
CONF
export APT_CONFIG="$work/conf"
apt-get --quiet --quiet update
if [ -z "$folder" ]; then
	# From "Candidate: V" and, below it, "*** V 500" or "V 500" and "500 URI SUITE/main ARCH Packages".
	apt-cache policy "$@" | awk '
		/^[^ ]/ { name = $1; sub(/:$/, "", name); next }
		$1 == "Candidate:" { wanted = $2; next }
		NF == 2 || $1 == "***" { at = $1 == "***" ? $2 : $1; next }
		at == wanted && $4 != "" && !(name in told) { told[name] = 1; sub(/\/.*/, "", $3); print name, wanted, $3 }'
	exit
fi
mkdir -p "$folder"
(cd "$work/debs" && apt-get --quiet download "$@")

status=$work/root/var/lib/dpkg/status.d # where scanners look for the packages of an image without dpkg
mkdir -p "$status"
for deb in "$work"/debs/*.deb; do
	dpkg-deb --extract "$deb" "$work/root"
	dpkg-deb --field "$deb" >"$status/$(dpkg-deb --field "$deb" Package)"
done

if [ -n "$only" ]; then
	mkdir -p "$work/root/$(dirname "$to")"
	mv "$work/root/$only" "$work/root/$to"
	for path in "$to" var/lib/dpkg/status.d "usr/share/doc/$1/copyright"; do
		mkdir -p "$folder/$(dirname "$path")"
		cp -a "$work/root/$path" "$folder/$path"
	done
	exit
fi

cd "$work/root"
find usr/share/doc ! -name copyright ! -type d -delete
find usr/share/doc -depth -type d -empty -delete
rm -rf usr/share/man usr/share/info usr/share/locale usr/share/lintian usr/share/bug usr/share/menu usr/sbin usr/share/pixmaps

cat usr/share/ca-certificates/mozilla/*.crt >etc/ssl/certs/ca-certificates.crt
rm -rf usr/share/ca-certificates
ln -sf python3.11 usr/bin/python3
printf 'root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\nmoorings:x:65532:65532:moorings:/:/sbin/nologin\n' >etc/passwd
printf 'root:x:0:\nnogroup:x:65534:\nmoorings:x:65532:\n' >etc/group
printf 'hosts: files dns\n' >etc/nsswitch.conf
python3.11 -m compileall -q -j 1 --invalidation-mode unchecked-hash -s "$work/root" usr/lib/python3.11
mkdir -p tmp proc sys dev run opt
find . -perm /6000 -exec chmod ug-s {} + # folders have these bits, too
find . -type d -exec chmod 755 {} +
chmod 1777 tmp
[ "$(id -u)" != 0 ] || chown --recursive --no-dereference 0:0 .
cp -a . "$folder"
