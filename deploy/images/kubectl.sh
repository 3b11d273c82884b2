#!/bin/sh
# Copies the launcher's kubectl into a folder that becomes a layer.
# usage: kubectl.sh debian FOLDER     Debian's kubectl
#        kubectl.sh FILE FOLDER       that file, or FILE-<architecture> if there is one; needs python3.11
# environment: as for root.sh
set -eu

here=$(dirname "$0")
if [ "$1" = debian ]; then
	exec "$here/root.sh" --only usr/bin/kubectl usr/local/bin/kubectl "$2" kubernetes-client
fi
architecture=${ARCHITECTURE:-$(dpkg --print-architecture)}
file=$1
[ ! -e "$file-$architecture" ] || file=$file-$architecture
# It is copied into any container, so it must need no shared library.
python3.11 - "$file" "$architecture" <<'PYTHON'
import struct
import sys

MACHINES = {62: "amd64", 183: "arm64"}
LOADER = 3  # the segment that names the dynamic loader
name, architecture = sys.argv[1:]
try:
    with open(name, "rb") as stream:
        content = stream.read(65536)
except OSError as error:
    sys.exit(f"error: {name}: {error.strerror}")
if content[:6] != b"\x7fELF\x02\x01" or len(content) < 64:
    sys.exit(f"error: {name} is not a program for Linux\nhint: take the file kubectl itself, for linux/{architecture}")
machine = struct.unpack_from("<H", content, 18)[0]
if MACHINES.get(machine) != architecture:
    sys.exit(f"error: {name} is for {MACHINES.get(machine, machine)}, and the image for {architecture}")
start, size, count = struct.unpack_from("<Q", content, 32)[0], *struct.unpack_from("<HH", content, 54)
if any(struct.unpack_from("<I", content, start + number * size)[0] == LOADER for number in range(count)):
    sys.exit(f"error: {name} needs libraries, which a job's image may lack\nhint: take a static one, as dl.k8s.io has it")
PYTHON
mkdir -p "$2/usr/local/bin"
cp "$file" "$2/usr/local/bin/kubectl"
chmod 755 "$2/usr/local/bin/kubectl"
