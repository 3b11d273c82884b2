#!/bin/sh
# Unpacks Debian's packages into a folder that becomes a layer. Nothing of them is run, so it needs no rights of its own;
# what their scripts would do is done here as far as our programs need it. The Dockerfiles and scripts/image.py both use it.
# usage: root.sh FOLDER PACKAGE...         in FOLDER: a root with Python; needs python3.11
#        root.sh --only FROM TO FOLDER PACKAGE    only that file of the package, elsewhere, and its licence
set -eu

only=
if [ "$1" = --only ]; then
	only=$2
	to=$3
	shift 3
fi
folder=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder" "$work/debs" "$work/root"
(cd "$work/debs" && apt-get --quiet download "$@")

status=$work/root/var/lib/dpkg/status.d # where scanners look for what is in an image without dpkg
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
find . -type f -perm /6000 -exec chmod ug-s {} +

cat usr/share/ca-certificates/mozilla/*.crt >etc/ssl/certs/ca-certificates.crt
rm -rf usr/share/ca-certificates
ln -sf python3.11 usr/bin/python3
printf 'root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\nmoorings:x:65532:65532:moorings:/:/sbin/nologin\n' >etc/passwd
printf 'root:x:0:\nnogroup:x:65534:\nmoorings:x:65532:\n' >etc/group
printf 'hosts: files dns\n' >etc/nsswitch.conf
python3.11 -m compileall -q -j 1 --invalidation-mode unchecked-hash -s "$work/root" usr/lib/python3.11
mkdir -p tmp proc sys dev run opt
find . -type d -perm -0002 -exec chmod 755 {} +
chmod 1777 tmp
cp -a . "$folder"
